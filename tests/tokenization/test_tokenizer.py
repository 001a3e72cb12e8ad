"""Both tokenizers have one interface; test_casing.py has what `open_tokenizer` refuses."""

import os

from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    FullTokenizer,
    SentencePieceTokenizer,
    open_tokenizer,
    write_vocab,
)

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens", "unigram.model")


def test_both_kinds_have_one_interface(tmp_path):
    write_vocab([*SPECIAL_TOKENS, "the", "##se", "cat"], str(tmp_path / "vocab.txt"))
    wordpiece, model = open_tokenizer(str(tmp_path / "vocab.txt")), SentencePieceTokenizer(MODEL)
    assert isinstance(wordpiece, FullTokenizer)
    for tokenizer, text in ((wordpiece, "these cat"), (model, "the quick fox")):
        tokens = tokenizer.tokenize(text)
        ids = tokenizer.encode(text)
        assert ids == tokenizer.convert_tokens_to_ids(tokens)
        assert tokenizer.convert_ids_to_tokens(ids) == tokens
        special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
        assert tokenizer.convert_ids_to_tokens(special)[1:] == ["[CLS]", "[SEP]", "[MASK]"]
        assert len(set(special)) == 4 and max(ids) < tokenizer.vocab_size
        assert not tokenizer.is_continuation(tokens[0])
    assert wordpiece.is_continuation("##se") and model.is_continuation("se")
