"""Words for [MASK] and scores of texts, against the logits of the networks and transformers."""

import contextlib
import shutil

import fixtures
import numpy as np
import pytest
from scripts import PRETRAINING
from tiny_run import bert_config, pretraining_flags, words

import run_pretraining
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import __main__ as conversion
from bert_estimator.interchange import open_source
from bert_estimator.interchange.network_variables import (
    ANSWER,
    CLASSIFIER,
    MASKED_LM,
    NEXT_SENTENCE,
)
from bert_estimator.interchange.source import ALBERT, BERT, Source
from bert_estimator.interchange.weights import open_network
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.filler import Filler
from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    train_sentencepiece,
    train_vocabulary,
    write_vocab,
)

MODELS = ("hf_masked_lm", "hf_pretraining", "hf_albert", "tf1")
TEXTS = [
    "Word1 [MASK] Word2",
    "[MASK]",
    ("Word3 [MASK]", "[MASK] Word5 unknown"),
    "Word4 [MASK] Word5[MASK][MASK] Word6 Word7 Word8",
    " [MASK] " * 12,  # more than are computed at a time
]
WHOLE = ["Word1 Word2", "Word3", ("Word3 Word4 Word1", "Word5 unknown"), "Word6 [MASK]"]


@contextlib.contextmanager
def logits_of(path):
    """Yields a function of ids and segments that returns the logits [F, V] of the weights."""
    source = open_source(str(path))
    weights = fixtures.weights_of(source)
    with open_network(source.config, weights, has_any_shape=True) as outputs_of:

        def logits(ids, segments):
            batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
            batch = {name: np.int32([value]) for name, value in batch.items()}
            return np.float64(outputs_of(weights, batch)["masked_lm_logits"][0])

        yield logits


def ids_of(path, text, reads_masks=True):
    """Returns the ids and segments of a text, put together by hand."""
    source = open_source(str(path))
    tokenizer = source.open_tokenizer()
    ids, segments = [tokenizer.cls_id], [0]
    for number, part in enumerate([text] if isinstance(text, str) else text):
        pieces = [tokenizer.encode(p) for p in (part.split("[MASK]") if reads_masks else [part])]
        joined = list(pieces[0])
        for piece in pieces[1:]:
            joined += [tokenizer.mask_id, *piece]
        ids += [*joined, tokenizer.sep_id]
        segments += [number] * (len(joined) + 1)
    return np.array(ids), np.array(segments), tokenizer


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def check_fills(filler, path, texts=TEXTS, top=4, atol=1e-6):
    with logits_of(path) as logits:
        for text, answer in zip(texts, filler.fill(texts, top), strict=True):
            ids, segments, tokenizer = ids_of(path, text)
            places = np.flatnonzero(ids == tokenizer.mask_id)
            assert len(answer["masks"]) == len(places) > 0
            probabilities = softmax(logits(ids, segments))
            for place, found in zip(places, answer["masks"], strict=True):
                best = np.argsort(-probabilities[place])[:top]
                tokens = tokenizer.convert_ids_to_tokens(best)
                shown = [token.removeprefix("▁") or token for token in tokens]
                assert [each["word"] for each in found] == shown
                given = [each["probability"] for each in found]
                np.testing.assert_allclose(given, probabilities[place][best], rtol=0, atol=atol)


def check_scores(filler, path, texts=WHOLE, rtol=1e-5):
    with logits_of(path) as logits:
        for text, answer in zip(texts, filler.score(texts), strict=True):
            ids, segments, tokenizer = ids_of(path, text, reads_masks=False)
            total = count = 0
            for place in range(len(ids)):
                if ids[place] in (tokenizer.cls_id, tokenizer.sep_id):
                    continue
                masked = np.where(np.arange(len(ids)) == place, tokenizer.mask_id, ids)
                total += np.log(softmax(logits(masked, segments)[place])[ids[place]])
                count += 1
            assert answer["num_tokens"] == count
            assert answer["pseudo_log_likelihood"] == pytest.approx(total, rel=rtol)
            assert answer["pseudo_perplexity"] == pytest.approx(np.exp(-total / count), rel=rtol)


@pytest.mark.parametrize("model", MODELS)
def test_words_are_what_the_logits_say(model):
    path = fixtures.DATA / model
    filler = Filler(str(path), batch_size=3)
    check_fills(filler, path)
    assert filler.fill(TEXTS[:1], 99)[0]["masks"][0][39]["probability"] > 0
    assert filler.fill([]) == []
    filler.close()


@pytest.mark.parametrize("model", MODELS)
def test_scores_mask_each_token_in_turn(model):
    path = fixtures.DATA / model
    filler = Filler(str(path), batch_size=3)
    check_scores(filler, path)
    assert filler.score([]) == []
    filler.close()


def test_it_gives_the_vectors_of_an_embedder():
    path = str(fixtures.DATA / "hf_pretraining")
    texts = ["word1 word2", ("word3", "[MASK]")]
    np.testing.assert_array_equal(Filler(path)(texts), Embedder(path)(texts))


def test_the_batch_and_its_padding_do_not_matter():
    path = str(fixtures.DATA / "hf_masked_lm")
    alone, together = Filler(path, batch_size=1), Filler(path, batch_size=32)
    for text, answer in zip(TEXTS, together.fill(TEXTS), strict=True):
        for found, other in zip(answer["masks"], alone.fill([text])[0]["masks"], strict=True):
            assert [each["word"] for each in found] == [each["word"] for each in other]
            for one, two in zip(found, other, strict=True):
                assert one["probability"] == pytest.approx(two["probability"], abs=1e-6)
    for text, answer in zip(WHOLE, together.score(WHOLE), strict=True):
        assert answer == pytest.approx(alone.score([text])[0], rel=1e-5)


def test_an_archive(tmp_path):
    archive = shutil.make_archive(str(tmp_path / "model"), "zip", fixtures.TF1)
    check_fills(Filler(archive), fixtures.TF1, TEXTS[:3])


@pytest.mark.parametrize("model", [*MODELS[1:], pytest.param(MODELS[0], marks=pytest.mark.slow)])
def test_onnx_models_fill_and_score_as_their_networks(model, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path, target = fixtures.DATA / model, tmp_path / "onnx"
    assert conversion.main(["interchange", str(path), str(target), "--to=onnx"]) == 0
    filler = Filler(str(target), batch_size=3)
    check_fills(filler, path, atol=1e-5)
    check_scores(filler, path, rtol=1e-4)
    texts = ["word1", ("word2 word3", "word4")]
    for onnx in (filler, Embedder(str(target))):
        np.testing.assert_allclose(onnx(texts), Embedder(str(path))(texts), atol=1e-5)


RUNS = {
    "float32": {"use_tpu": None},
    "bfloat16": {"precision": "bfloat16", "micro_batch_size": 4},
    "packed on 2 cores": {"precision": "bfloat16", "tpu_name": "rehearse:2", "pack": True},
}


@pytest.mark.parametrize("run", [pytest.param(n, marks=pytest.mark.slow) for n in RUNS])
def test_runs_of_a_pretraining_and_what_they_are_converted_to(tmp_path, request, run):
    """The networks compute in float32, whatever the runs did."""
    if "tpu_name" in RUNS[run]:
        request.getfixturevalue("xla_runtime")
    PRETRAINING.write_data(tmp_path)
    output = tmp_path / "run"
    flags = pretraining_flags(tmp_path, output, num_train_steps=4, **RUNS[run])
    assert run_pretraining.main(["run_pretraining.py", *flags, "--do_train"]) == 0
    texts = ["w1 [MASK] w2 [MASK]", ("[MASK]", "w4")]
    check_fills(Filler(str(output)), output, texts)
    check_scores(Filler(str(output)), output, ["w1 w2 w9", ("w3", "w4")])
    for to in ("hf", "tf1"):
        target = str(tmp_path / to)
        assert conversion.main(["interchange", str(output), target, f"--to={to}"]) == 0
        check_fills(Filler(target), output, texts)


LACKING = {
    "hf_classifier": "an encoder with a classifier",
    "hf_encoder": "an encoder alone",
    "hf_electra": "the encoder of an ELECTRA's discriminator, which tells replaced words from oth",
}


@pytest.mark.parametrize("model", LACKING)
def test_a_network_without_the_head_says_what_it_has(model, tmp_path):
    path = str(fixtures.DATA / model)
    with pytest.raises(
        ValueError, match=rf"{model}: does not have a head .*: it is {LACKING[model]}"
    ):
        Filler(path)
    filler = Filler(path, is_needed=False)
    assert not filler.fills
    np.testing.assert_array_equal(filler(["word1"]), Embedder(path)(["word1"]))
    with pytest.raises(ValueError, match=rf"{model}: does not have a head for masked words$"):
        filler.fill(["[MASK]"])


def test_a_network_for_answers_and_an_onnx_model_without_the_head(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    config = BertConfig(**bert_config(20))
    vocab_file = str(tmp_path / "words.txt")
    write_vocab([*SPECIAL_TOKENS, *words(20)], vocab_file)
    (tmp_path / "tf1").mkdir()
    weights = fixtures.random_weights(config, (ANSWER,))
    fixtures.write_tf1(tmp_path / "tf1", config, weights, vocab_file=vocab_file)
    with pytest.raises(ValueError, match="it is an encoder with a head for answers"):
        Filler(str(tmp_path / "tf1"))
    target = str(tmp_path / "onnx")
    assert conversion.main(["interchange", str(tmp_path / "tf1"), target, "--to=onnx"]) == 0
    with pytest.raises(ValueError, match="it is an ONNX model with start_logits, end_logits, last"):
        Filler(target)


@pytest.mark.parametrize("heads", [(MASKED_LM, CLASSIFIER), (MASKED_LM,)])
@pytest.mark.parametrize("lacks", ["output_bias", "transform/dense/kernel"])
def test_a_part_of_the_head_is_missed(tmp_path, heads, lacks):
    config = BertConfig(**bert_config(20))
    vocab_file = str(tmp_path / "words.txt")
    write_vocab([*SPECIAL_TOKENS, *words(20)], vocab_file)
    weights = fixtures.random_weights(config, heads)
    weights.pop(f"{MASKED_LM}/{lacks}")
    (tmp_path / "tf1").mkdir()
    fixtures.write_tf1(tmp_path / "tf1", config, weights, vocab_file=vocab_file)
    with pytest.raises(ValueError, match=rf"cls/predictions/{lacks} \[.*\]: missing"):
        Filler(str(tmp_path / "tf1"))
    assert not Filler(str(tmp_path / "tf1"), is_needed=False).fills


def test_the_token_that_lists_words_is_not_proposed(tmp_path):
    """The other words keep their probabilities, and as many as asked for are listed."""
    folder, path = shutil.copytree(fixtures.TF1, tmp_path / "model"), str(fixtures.TF1)
    tokens = (folder / "vocab.txt").read_text().splitlines()
    (expected,) = Filler(path).fill(["[MASK]"], 99)[0]["masks"]
    words = [each["word"] for each in expected if not each["word"].startswith("[")]
    listing = f"[whole_words:{tokens.index(words[1])}]"
    tokens[tokens.index(words[0])] = listing
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    expected = [each for each in expected if each["word"] != words[0]]
    for number in (1, 5, 99):
        (found,) = Filler(str(folder)).fill(["[MASK]"], number)[0]["masks"]
        assert found == expected[:number]


def test_rows_without_a_token_are_not_proposed(tmp_path):
    folder = shutil.copytree(fixtures.TF1, tmp_path / "model")
    tokens = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join(tokens[:30]) + "\n")
    ((few,),) = (answer["masks"] for answer in Filler(str(folder)).fill(["[MASK]"], 40))
    ((all_words,),) = (answer["masks"] for answer in Filler(str(fixtures.TF1)).fill(["[MASK]"], 40))
    assert len(few) == 30
    probabilities = {each["word"]: each["probability"] for each in all_words}
    assert {each["word"]: each["probability"] for each in few} == pytest.approx(
        {token: probabilities[token] for token in tokens[:30]}
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["[MASK]", "word1"], r"texts\[1\] does not have \[MASK\], in capitals, which stands for"),
        (["word1 [mask]"], r"texts\[0\] does not have \[MASK\]"),
        ([("word1 [MA", "SK]")], r"texts\[0\] does not have \[MASK\]"),
        (
            ["[MASK] " * 23],
            r"texts\[0\] has 25 tokens with \[CLS\] and \[SEP\], but the network has",
        ),
        ([3], r"texts\[0\] is 3; it must be a string or a pair of strings"),
        (["[MASK]\ud800"], r"texts\[0\] holds half of a character"),
        ("[MASK]", "texts is a single string; give a list of texts"),
    ],
)
def test_texts_that_cannot_be_filled(texts, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Filler(str(fixtures.DATA / "hf_masked_lm")).fill(texts)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["word1", " "], r"texts\[1\] does not have a word to score"),
        (
            ["word1 " * 23],
            r"texts\[0\] has 25 tokens with \[CLS\] and \[SEP\], but the network has 24",
        ),
        ("word1", "texts is a single string; give a list of texts"),
    ],
)
def test_texts_that_cannot_be_scored(texts, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Filler(str(fixtures.DATA / "hf_masked_lm")).score(texts)


def test_outputs_that_are_not_finite(tmp_path):
    def overflowing(tensors):
        name = "cls.predictions.transform.dense.weight"
        return {**tensors, name: np.full_like(tensors[name], 3e38)}

    path = str(fixtures.changed(tmp_path, "hf_pretraining", overflowing))
    for function in (Filler(path).fill, Filler(path).score):
        with pytest.raises(ValueError, match=r"^the network's output for texts\[0\] is not finite"):
            function(["[MASK] word1"])


# Texts with one mask and several, and what stands beside them.
OF_TRANSFORMERS = [
    "The quick [MASK] fox didn't jump over the lazy dog.",
    "[MASK]",
    "Größe und [MASK][MASK] Maß: 1,234.50 € (gestern)!",
    "我们在[MASK]京 study [MASK]文。",
    "un[MASK]able naïve café ﬁnance ½ [MASK].",
    "BERT reads [MASK] dollars, us dollars and U.S. [MASK] [MASK] ",
]


KINDS = ("uncased", "cased", "sentencepiece")


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Writes networks of random weights as transformers does, with vocabularies of all kinds."""
    texts = [text.replace("[MASK]", " ") for text in OF_TRANSFORMERS] * 20
    written = {}
    for kind in KINDS:
        path = tmp_path_factory.mktemp(kind)
        is_pieces = kind == "sentencepiece"
        vocab_file = str(path / ("spiece.model" if is_pieces else "vocab.txt"))
        if is_pieces:
            train_sentencepiece(texts, vocab_file, 60)
            sizes = {"vocab_size": 60, "embedding_size": 8, "num_hidden_groups": 1}
        else:
            vocab = train_vocabulary(texts, 200, kind == "uncased", character_coverage=1.0)
            write_vocab(vocab, vocab_file)
            sizes = {"vocab_size": len(vocab), "hidden_act": "gelu_erf"}
        sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 64}
        config = BertConfig(**bert_config(0, **sizes))
        weights = fixtures.random_weights(config, (MASKED_LM, NEXT_SENTENCE))
        facts = {"config": config, "vocab_file": vocab_file, "do_lower_case": kind != "cased"}
        facts["architecture"] = ALBERT if is_pieces else BERT
        made = Source("here", "tf1", {}, weights.get, **facts)
        written[kind] = path / "network"
        written[kind].mkdir()
        fixtures.write_hugging_face(written[kind], made, weights)
    return written


@pytest.mark.parametrize("kind", KINDS)
def test_masks_stand_in_any_script(networks, kind):
    check_fills(Filler(str(networks[kind])), networks[kind], OF_TRANSFORMERS)


def test_a_piece_after_a_mask_begins_a_word(networks):
    """What follows is split as if a space came before, as transformers' AlbertTokenizer does it."""
    filler = Filler(str(networks["sentencepiece"]))
    spaced = filler.fill(["dog [MASK] .", "a [MASK] b"])
    assert filler.fill(["dog[MASK].", "a[MASK]b"]) == spaced


@fixtures.needs_transformers
def test_words_are_what_the_pipeline_of_transformers_gives(networks):
    with fixtures.transformers_answering("pipelines") as ask:
        for kind in ("uncased", "cased"):
            path, options = networks[kind], {"top_k": 7}
            theirs = ask(
                task="fill-mask", folder=str(path), inputs=OF_TRANSFORMERS, options=options
            )
            ours = Filler(str(path)).fill(OF_TRANSFORMERS, 7)
            for text, answer, others in zip(OF_TRANSFORMERS, ours, theirs, strict=True):
                # For a single mask, the pipeline does not give a list of lists.
                others = others if isinstance(others[0], list) else [others]
                assert len(answer["masks"]) == len(others) == text.count("[MASK]")
                for found, other in zip(answer["masks"], others, strict=True):
                    scores = [each["score"] for each in other]
                    given = [each["probability"] for each in found]
                    np.testing.assert_allclose(given, scores, rtol=0, atol=1e-5, err_msg=text)
                    tokens = [each["token_str"] for each in other]
                    assert [each["word"] for each in found] == tokens, (kind, text)


@fixtures.needs_transformers
def test_words_of_sentencepiece_are_what_transformers_computes(networks, tmp_path):
    """Its tokenizer needs packages of its own, so that it gets ids."""
    path, text = networks["sentencepiece"], OF_TRANSFORMERS[2]
    ids, segments, tokenizer = ids_of(path, text)
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    np.savez(tmp_path / "batch.npz", **{name: np.int32([value]) for name, value in batch.items()})
    fixtures.transformers("logits", path, tmp_path / "batch.npz", tmp_path / "logits.npz")
    logits = np.float64(np.load(tmp_path / "logits.npz")["masked_lm_logits"][0])
    expected = -np.sort(-softmax(logits[ids == tokenizer.mask_id]))[:, :7]
    (answer,) = Filler(str(path)).fill([text], 7)
    given = [[each["probability"] for each in found] for found in answer["masks"]]
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)
