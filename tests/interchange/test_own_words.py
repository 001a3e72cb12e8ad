"""Networks whose vocabulary gets words: rows, ids and outputs, in every format and program."""

import dataclasses
import itertools
import json
import pathlib
import shutil

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tokenizers
from commands import MAINS
from tiny_run import classifier_flags, pairs, pretraining_flags, write_pairs

import run_classifier
import run_pretraining
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import Source, open_source
from bert_estimator.interchange.hugging_face import tokenizer_json
from bert_estimator.interchange.network_variables import CLASSIFIER, MASKED_LM, NEXT_SENTENCE
from bert_estimator.interchange.weights import logits_of
from bert_estimator.serving.graph_wordpiece import GraphWordPiece
from bert_estimator.system import memory
from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    BasicTokenizer,
    FullTokenizer,
    casing,
    own_words,
    write_vocab,
)
from input_pipelines import create_vocabulary

GOLDENS = pathlib.Path(__file__).parent.parent / "tokenization" / "goldens" / "tokens.json"
NASTY = json.loads(GOLDENS.read_text(encoding="ascii"))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [
    "[PAD]", "[unused0]", "[unused1]", "[unused2]", *SPECIAL_TOKENS[1:], *LETTERS,
    *("##" + letter for letter in LETTERS), "foob", "##bar", "the", ",",
]  # fmt: skip
# The words of the text that are cut, by the pieces that they save: 4 * 2, 2 * 2 and 1 * 2.
TEXT = "the foo, foo the foo\nfoo, zap zap the abc\n\nthe the the\n"
WITHOUT = ["the the, a b", "foobar fooba abcd zapp", "the foob zapz abca ab xfoo"]
PIECES = {"foo": ["f", "##o", "##o"], "zap": ["z", "##a", "##p"], "abc": ["a", "##b", "##c"]}
KINDS = {
    "masked words": (MASKED_LM,),
    "pretraining": (MASKED_LM, NEXT_SENTENCE),
    "classes": (CLASSIFIER,),
    "encoder": (),
}


def write_network(folder, to, heads, rows=None, hidden_act="gelu_erf", tokens=TOKENS, **facts):
    """Writes a network of two layers over tokens."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 24, "layer_norm_eps": 1e-5}
    config = BertConfig(vocab_size=rows or len(tokens), hidden_act=hidden_act, **sizes)
    weights = fixtures.random_weights(config, heads)
    folder.mkdir()
    vocab_file = str(folder.parent / "words.txt")
    write_vocab(tokens, vocab_file)
    shapes = {name: list(value.shape) for name, value in weights.items()}
    facts = {"do_lower_case": True, "vocab_file": vocab_file, "kind": None, **facts}
    source = Source(str(folder), to, shapes, weights.get, config=config, **facts)
    if to == "hf":
        fixtures.write_hugging_face(folder, source, weights)
    else:
        fixtures.write_tf1(folder, config, weights, **facts)
    return folder


def extend(network, target, *flags):
    flags = [f"--extend={network}", f"--output_dir={target}", *flags]
    return MAINS["vocabulary"](["vocabulary", *flags])


def extended(tmp_path, network, *flags):
    (tmp_path / "text.txt").write_text(TEXT)
    flags = flags or (f"--input_file={tmp_path}/text.txt",)
    assert extend(network, tmp_path / "new", *flags) == 0
    return open_source(str(network)), open_source(str(tmp_path / "new"))


def batch_of(tokenizer, texts):
    ids = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    length = max(map(len, ids))
    rows = np.array([row + [0] * (length - len(row)) for row in ids], np.int32)
    return {"input_ids": rows, "input_mask": np.int32(rows > 0), "segment_ids": np.int32(0 * rows)}


@pytest.mark.parametrize("to", ["tf1", "hf"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_means_and_other_texts_keep_ids_and_outputs(tmp_path, capsys, kind, to):
    facts = {"kind": "classification", "labels": ("no", "yes")} if kind == "classes" else {}
    network = write_network(tmp_path / "network", to, KINDS[kind], **facts)
    before, after = extended(tmp_path, network)
    assert "with 3 further words, such as foo, zap, abc" in capsys.readouterr().out
    assert after.format == before.format == to
    for name in ("labels", "kind", "casing", "left_out"):
        assert getattr(after, name) == getattr(before, name)
    rows = len(TOKENS) + 1  # two of three places are for words, and one lists them
    assert after.config == dataclasses.replace(before.config, vocab_size=rows)
    tokens = list(FullTokenizer(after.vocab_file).vocab)
    assert tokens[:4] == ["[PAD]", f"[whole_words:2-3,{rows - 1}]", "foo", "zap"]
    assert tokens[4:] == [*TOKENS[4:], "abc"]
    for name in before.shapes:
        old, new = before.read(name), after.read(name)
        if name not in ("bert/embeddings/word_embeddings", f"{MASKED_LM}/output_bias"):
            np.testing.assert_array_equal(new, old, name)
            continue
        for number, token in enumerate(tokens):
            pieces = [TOKENS.index(piece) for piece in PIECES.get(token, [])]
            expected = old[pieces].mean(axis=0) if pieces else old[number]
            np.testing.assert_allclose(new[number], expected, rtol=0 if not pieces else 1e-6)
    tokenizers = [source.open_tokenizer() for source in (before, after)]
    outputs = []
    for source, tokenizer in zip((before, after), tokenizers, strict=True):
        batch, weights = batch_of(tokenizer, WITHOUT), fixtures.weights_of(source)
        outputs.append({"ids": batch["input_ids"], **logits_of(source.config, weights, batch)})
    masked = [values.pop("masked_lm_logits", None) for values in outputs]
    np.testing.assert_equal(outputs[1], outputs[0])
    if masked[0] is not None:
        np.testing.assert_allclose(masked[1][..., 4 : len(TOKENS)], masked[0][..., 4:], 1e-6, 1e-6)
    assert tokenizers[1].tokenize("Foo foobar, zap") == ["foo", "foob", "##a", "##r", ",", "zap"]


def test_rows_of_padding_come_before_new_ones(tmp_path):
    network = write_network(tmp_path / "network", "tf1", (), rows=len(TOKENS) + 8)
    (tmp_path / "words.list").write_text("foo\nzap\nabc\nhello\n")
    before, after = extended(tmp_path, network, f"--words={tmp_path}/words.list")
    assert after.config == before.config
    tokens = list(FullTokenizer(after.vocab_file).vocab)
    assert tokens[-2:] == ["abc", "hello"] and len(tokens) == len(TOKENS) + 2


def test_an_extended_network_is_extended_pretrained_and_converted(tmp_path):
    network = write_network(tmp_path / "network", "hf", KINDS["masked words"], hidden_act="relu")
    _, after = extended(tmp_path, network)
    assert not (tmp_path / "new" / "vocab.txt").exists()  # it would say less than tokenizer.json
    (tmp_path / "words.list").write_text("hello\n")
    words = f"--words={tmp_path}/words.list"
    assert extend(tmp_path / "new", tmp_path / "newer", words) == 0
    newer = open_source(str(tmp_path / "newer"))
    vocab = FullTokenizer(newer.vocab_file).wordpiece_tokenizer.whole_words
    assert list(vocab) == ["foo", "zap", "abc", "hello"]
    write_records(tmp_path, tmp_path / "newer")
    flags = {"init_checkpoint": tmp_path / "newer", "bert_config_file": None, "train_batch_size": 2}
    flags |= {"num_train_steps": 1, "num_warmup_steps": 0, "learning_rate": 1e-30}
    flags = pretraining_flags(tmp_path, tmp_path / "run", do_train=True, **flags)
    assert run_pretraining.main(["", *flags]) == 0
    for source, target in (("run", "as_hf"), ("as_hf", "as_tf1")):
        assert MAINS["convert"](["", f"{tmp_path}/{source}", f"{tmp_path}/{target}"]) == 0
    for name in ("run", "as_hf", "as_tf1"):
        source = open_source(str(tmp_path / name))
        assert FullTokenizer(source.vocab_file).vocab == FullTokenizer(newer.vocab_file).vocab
        for weight in newer.shapes:
            np.testing.assert_array_equal(source.read(weight), newer.read(weight), weight)
    assert after.config.vocab_size + 1 == newer.config.vocab_size


def write_records(folder, vocab_file):
    flags = [f"--vocab_file={vocab_file}", f"--output_file={folder}/train.tfrecord"]
    flags += [f"--input_file={folder}/text.txt", "--max_seq_length=16"]
    assert MAINS["records"](["records", *flags, "--max_predictions_per_seq=4"]) == 0


@pytest.mark.parametrize("to", ["tf1", "hf"])
@pytest.mark.parametrize("verb", ["do_train", "do_eval", "classifier"])
def test_the_network_that_was_not_extended_is_refused(tmp_path, capsys, verb, to):
    """Its rows of the words are as many, but nobody has made them of the pieces."""
    network = write_network(tmp_path / "network", to, KINDS["pretraining"])
    (tmp_path / "words.list").write_text("foo\n")
    before, after = extended(tmp_path, network, f"--words={tmp_path}/words.list")
    assert before.config == after.config
    changes = {"init_checkpoint": network, "bert_config_file": None}
    if verb == "classifier":
        write_pairs(tmp_path / "train.tsv", pairs(9, 1))
        changes |= {"vocab_file": after.vocab_file, "eval_file": None, "do_train": True}
        code = run_classifier.main(["", *classifier_flags(tmp_path, tmp_path / "run", **changes)])
    else:
        write_records(tmp_path, tmp_path / "new")
        flags = pretraining_flags(tmp_path, tmp_path / "run", **changes, **{verb: True})
        code = run_pretraining.main(["", *flags])
    said = capsys.readouterr().err
    assert code == 2, said
    flag = "vocab_file" if verb == "classifier" else "input_file"
    assert f"--{flag}: {network} was trained with the vocabulary " in said
    assert "whose token 1 is '[unused0]', and " in said and "has '[whole_words:2]' there." in said


def test_pretraining_goes_on_with_rows_of_padding(tmp_path, capsys):
    rows = len(TOKENS) + 8
    network = write_network(tmp_path / "network", "hf", KINDS["pretraining"], rows=rows)
    (tmp_path / "text.txt").write_text(TEXT)
    write_records(tmp_path, network)
    changes = {"init_checkpoint": network, "bert_config_file": None, "num_train_steps": 2}
    for others in ({"do_train": True, "do_eval": True}, {"do_eval": True}):
        flags = {**changes, **others, "num_warmup_steps": 0, "train_batch_size": 2}
        flags = pretraining_flags(tmp_path, tmp_path / "run", **flags)
        assert run_pretraining.main(["", *flags]) == 0
        assert "unigram baseline of the same tokens" in capsys.readouterr().out
    run = open_source(str(tmp_path / "run"))
    assert run.config.vocab_size == run.shapes["bert/embeddings/word_embeddings"][0] == rows
    assert FullTokenizer(run.vocab_file).vocab_size == len(TOKENS)


def test_further_words_do_not_change_the_casing(tmp_path):
    """Nothing beside the network says it: the capitals of its vocabulary tell."""
    capitals = [*"ABCDEF", *(f"{letter}x" for letter in "ABCDEF")]
    others = [*LETTERS, *(f"##{x}" for x in LETTERS), *(x + y for x in LETTERS[:9] for y in "stop")]
    tokens = [*SPECIAL_TOKENS, *capitals, *others]
    network = write_network(tmp_path / "network", "tf1", (), tokens=tokens, do_lower_case=None)
    words = [x + y + x for x in LETTERS for y in LETTERS]
    (tmp_path / "words.list").write_text("\n".join(words))
    before, after = extended(tmp_path, network, f"--words={tmp_path}/words.list")
    assert before.casing is None and casing.is_cased(tokens)
    assert not casing.is_cased(list(FullTokenizer(after.vocab_file).vocab))
    for source in (before, after):
        assert source.open_tokenizer().tokenize("Ax as") == ["Ax", "as"]


@pytest.mark.parametrize("casing", [(True, None), (False, None), (True, False), (False, True)])
def test_other_programs_match_whole_words_alone(tmp_path, casing):
    """The file for transformers, and the graph of an export, give the ids of the tokenizer."""
    basic, plain = BasicTokenizer(*casing), str(tmp_path / "vocab.txt")
    texts = [text for text in NASTY["strings"] if "[" not in text]
    words = sorted({word for text in texts for word in basic.tokenize(text)} - {*NASTY["vocab"]})
    words = [word for word in words if any(map(str.isalpha, word)) and len(word) < 99][::3]
    assert len(words) > 20
    write_vocab(own_words.with_words(NASTY["vocab"], words), plain)
    tokenizer = FullTokenizer(plain, *casing)
    form = "{0} {0}{1},{1} {1}s x{0} \u4e2d{0}\u4e2d {0}_{1} {0}\u20ac"
    texts += [form.format(*pair) for pair in itertools.pairwise(words)]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json.written(tokenizer)))
    theirs = tokenizers.Tokenizer.from_file(str(path))
    expected = [tokenizer.encode(text) for text in texts]
    found = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert [t for t, a, b in zip(texts, found, expected, strict=True) if a != b] == []
    with tf.Graph().as_default(), tf.Session() as session:
        graph = GraphWordPiece(tokenizer)(tf.constant([text.encode() for text in texts]))
        assert session.run(graph).to_list() == expected
    decoded = theirs.decode(tokenizer.encode(f"{words[0]} {words[1]}"))
    assert "\u2060" not in decoded and words[1] in decoded
    values = json.loads(path.read_text())
    assert tokenizer_json.casing_of(values) == tokenizer.casing
    assert tokenizer_json.tokens(values, "path") == list(tokenizer.vocab)
    values["normalizer"]["normalizers"].pop()
    with pytest.raises(ValueError, match=r"path: normalizer: type=.* is not supported"):
        tokenizer_json.check(values, "path", True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--input_file: with --extend, give either this flag or --words"),
        (["--words=W", "--input_file=T"], "--input_file=T: with --extend, give either this flag"),
        (["--words=W", "--vocab_file=a"], "--vocab_file=a: is the network's with --extend; leave"),
        (["--words=W", "--do_lower_case"], "--do_lower_case=True: is the network's with --exten"),
        (["--words=W", "--output_dir="], "--output_dir=: is needed with --extend"),
        (["--words=W", "--output_dir=N"], "--output_dir: N: exists already; choose another target"),
        (["--words=none"], "--words=none: there is no such file"),
        (["--words=L"], "--words=L: does not have a word that the vocabulary cuts into pieces"),
        (["--words=B"], "--words: B:1: 'a b' is a + b, since spaces and signs separate words"),
        (["--words=U"], "--words: U: is not UTF-8"),
        (["--words=W", "--extend=none"], "--extend=none: there is no such checkpoint. Give the"),
        (["--words=W", "--extend=T"], "--extend: T: is not a zip archive."),
        (["--words=W", "--num_words=0"], "--num_words=0: must be positive"),
        (["--words=W", "--vocab_size=9"], "--vocab_size=9: is the network's with --extend; leave"),
        (["--input_file=T", "--model_type=bpe"], "--model_type=bpe: is the network's with --exten"),
        (
            ["--words=W", "--num_words=9"],
            "--num_words=9: is for the text of --input_file; leave it",
        ),
        (
            ["--words=W", "--min_words=9"],
            "--min_words=9: is for the text of --input_file; leave it",
        ),
        (["--words=W", "--text_field=a"], "--text_field=a: is for the text of --input_file; leav"),
        (["--words=W", "--document_per_file"], "--document_per_file=True: is for the text of --in"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "N", "tf1", ())
    for name, content in {"W": "foo", "T": TEXT, "L": "the\n", "B": "a b"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "U").write_bytes(b"\xff\xfe")
    assert extend("N", "new", *flags) == 2
    assert f"vocabulary: {message}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("taken", "taken: exists already; choose another target, or remove it"),
        ("ram://a/b", "ram://a/b: must be a directory of this machine; copy it there afterwards"),
        ("a?", "a?: has the character ?, with which TensorFlow takes"),
    ],
)
def test_the_target_is_checked_before_the_text_is_read(
    tmp_path, monkeypatch, capsys, target, message
):
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "network", "tf1", ())
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr(create_vocabulary, "count_words", None)
    assert extend("network", target, "--input_file=text.txt") == 2
    assert f"vocabulary: --output_dir: {message}" in capsys.readouterr().err


def test_so_is_the_memory_of_the_machine(tmp_path, monkeypatch, capsys):
    network = write_network(tmp_path / "network", "hf", ())
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1000)
    monkeypatch.setattr(create_vocabulary, "count_words", None)
    assert extend(network, tmp_path / "new", f"--input_file={tmp_path}/text.txt") == 2
    assert "convert it on a machine with more memory" in capsys.readouterr().err


def test_what_needs_extend_and_sentencepiece(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    flags = [f"--input_file={tmp_path}/text.txt", f"--vocab_file={tmp_path}/a.model"]
    for flag in ("--output_dir=x", "--num_words=3"):
        assert MAINS["vocabulary"](["vocabulary", *flags, flag]) == 2
        said = f"{flag}: needs --extend; add it, or leave this flag out"
        assert said in capsys.readouterr().err
    flags += ["--model_type=unigram", "--vocab_size=18"]
    assert MAINS["vocabulary"](["vocabulary", *flags]) == 0
    network = write_network(tmp_path / "network", "tf1", (), rows=18)
    (network / "vocab.txt").unlink()
    shutil.copy(tmp_path / "a.model", network / "vocab.model")
    assert extend(network, tmp_path / "new", flags[0]) == 2
    said = capsys.readouterr().err
    assert f"--extend={network}: has a SentencePiece model; words can be added to WordPiece" in said


@fixtures.needs_transformers
def test_transformers_opens_it_with_equal_ids_and_logits(tmp_path):
    """And a plain line of vocab.txt would be the beginning of other words, too, there as here."""
    network = write_network(tmp_path / "network", "hf", KINDS["pretraining"])
    _, after = extended(tmp_path, network)
    texts = [*WITHOUT, *TEXT.split("\n"), "Foo,foobar zap's abc"]
    tokenizer = after.open_tokenizer()
    expected = [tokenizer.encode(text) for text in texts]
    plain = fixtures.changed(tmp_path, "hf_encoder")
    write_vocab(list(tokenizer.vocab), str(plain / "vocab.txt"))
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    # Of the words `zapp`, `abcd`, `zapz` and `abca`, which begin with new words.
    for folder, others in ((tmp_path / "new", []), (plain, WITHOUT[1:])):
        fixtures.transformers("tokens", folder, tmp_path / "texts.json", tmp_path / "ids.json")
        ids = zip(texts, json.loads((tmp_path / "ids.json").read_text()), expected, strict=True)
        assert [text for text, there, here in ids if there != here] == others
    batch = batch_of(tokenizer, texts)
    np.savez(tmp_path / "batch.npz", **batch)
    new = tmp_path / "new"
    fixtures.transformers("logits", new, tmp_path / "batch.npz", tmp_path / "logits.npz")
    ours, is_token = logits_of(after.config, fixtures.weights_of(after), batch), batch["input_mask"]
    with np.load(tmp_path / "logits.npz") as theirs:
        assert {"masked_lm_logits", "next_sentence_logits"} <= set(theirs)
        for name, value in theirs.items():
            real = is_token > 0 if value.ndim == 3 else ...  # padding does not count
            np.testing.assert_allclose(ours[name][real], value[real], rtol=0, atol=1e-5)
