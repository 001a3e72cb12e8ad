"""Vectors of texts, against the vectors that transformers computes from the same files."""

import io
import json
import os
import runpy
import shutil
import sys

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import bert_config, words

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.serving import embed
from bert_estimator.serving.embedder import Embedder, _pool, _pool_arrays
from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab

ENCODER = str(fixtures.DATA / "hf_encoder")
# The golden vectors are of these texts: `transformers_oracle.py vectors` made them.
TEXTS = [
    "word1 word2",
    "word3 unknown word4",
    ("word5 word6", "word7"),
    "",
    " ".join(f"word{i % 35}" for i in range(40)),
]
GOLDEN = fixtures.HERE.parent / "serving" / "golden_vectors.npz"


@pytest.fixture(scope="module")
def embedder():
    return Embedder(ENCODER, layers=[-1, -2], batch_size=4)


def pooled(pooling, hidden, mask):
    """Returns what float64 NumPy makes of hidden states [text, length, width]."""
    hidden = hidden.astype(np.float64)
    if pooling == "cls":
        return hidden[:, 0]
    rows = [states[real] for states, real in zip(hidden, mask, strict=True)]
    return np.stack([row.mean(axis=0) if pooling == "mean" else row.max(axis=0) for row in rows])


@pytest.mark.parametrize(
    ("pooling", "layers"), [("mean", (-1,)), ("cls", (0, 1)), ("max", (2, -3, -2))]
)
def test_vectors_are_those_of_transformers(pooling, layers):
    golden = np.load(GOLDEN)
    embedder = Embedder(ENCODER, pooling, layers, batch_size=2)
    vectors = embedder(TEXTS)
    assert vectors.shape == (5, embedder.width) and vectors.dtype == np.float32
    expected = [pooled(pooling, golden["hidden"][layer], golden["mask"]) for layer in layers]
    np.testing.assert_allclose(vectors, np.concatenate(expected, axis=-1), rtol=0, atol=1e-5)
    assert embedder.num_cut == 1


@pytest.mark.parametrize("pool", [_pool, _pool_arrays])
def test_another_pooling_is_not_taken_for_the_mean(pool):
    with pytest.raises(AssertionError, match="median"):
        pool("median", np.ones([1, 2, 3], np.float32), np.ones([1, 2], np.int32))


def test_the_poolers_vectors_and_tokens_are_those_of_transformers():
    golden = np.load(GOLDEN)
    embedder = Embedder(ENCODER, "pooled", [0, -1])
    np.testing.assert_allclose(embedder(TEXTS), golden["pooled"], rtol=0, atol=1e-5)
    found = embedder.tokens(TEXTS)
    assert found[2][0] == ["[CLS]", "word5", "word6", "[SEP]", "word7", "[SEP]"]
    assert found[1][0] == ["[CLS]", "word3", "[UNK]", "word4", "[SEP]"]
    for place, (tokens, vectors) in enumerate(found):
        for layer, values in zip((0, -1), vectors, strict=True):
            expected = golden["hidden"][layer, place][golden["mask"][place]]
            assert len(tokens) == len(expected)
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5)


@fixtures.needs_transformers
# Without tokenizer_config.json, transformers does not read an ALBERT's vocab.txt.
@pytest.mark.parametrize("model", [*fixtures.BERTS, "hf_electra"])
def test_transformers_computes_these_vectors_today(model, tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    fixtures.transformers(
        "vectors", fixtures.DATA / model, tmp_path / "texts.json", tmp_path / "vectors.npz"
    )
    golden = np.load(tmp_path / "vectors.npz")
    vectors = Embedder(str(fixtures.DATA / model))(TEXTS)
    expected = pooled("mean", golden["hidden"][-1], golden["mask"])
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module", params=["vocab.txt", "vocab.model"])
def checkpoint(request, tmp_path_factory):
    """Writes a checkpoint of google-research/bert with 40 positions, beside its vocabulary."""
    folder = tmp_path_factory.mktemp("checkpoint")
    vocab_file, size = str(folder / request.param), 25
    if request.param == "vocab.model":
        sentences = [" ".join(f"w{(i * j) % 20}" for j in range(1, 9)) for i in range(60)]
        train_sentencepiece(sentences, vocab_file, 20)
        size = 20
    else:
        write_vocab([*SPECIAL_TOKENS, *words(20)], vocab_file)
    config = BertConfig(**bert_config(0, vocab_size=size, max_position_embeddings=40))
    target = folder / "network"
    target.mkdir()
    fixtures.write_tf1(target, config, fixtures.random_weights(config), vocab_file=vocab_file)
    return target


def test_the_batch_and_its_padding_do_not_matter(checkpoint):
    texts = [" ".join(f"w{(i + j) % 20}" for j in range(i)) for i in (1, 5, 12, 20, 60, 3, 30)]
    alone = Embedder(str(checkpoint), batch_size=1)
    together = Embedder(str(checkpoint), batch_size=4)
    np.testing.assert_allclose(alone(texts), together(texts), rtol=0, atol=1e-5)
    assert alone.num_cut == together.num_cut > 0
    assert Embedder(str(checkpoint), max_seq_length=8)(texts).shape == (7, 16)


def test_it_loads_without_fcntl(monkeypatch, tmp_path):
    """As on Windows, where rows wait in a temporary file, since `>>` cannot be told from `>`."""
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "fcntl", None)
        loaded = runpy.run_path(embed.__file__)
    with open(tmp_path / "vectors.npy", "w+b") as writer:
        assert not loaded["_is_rewritable"](writer)
        assert embed._is_rewritable(writer)


def test_a_killed_command_leaves_a_file_that_cannot_be_opened(tmp_path):
    path = tmp_path / "vectors.npy"
    with open(path, "wb") as writer:
        vectors = embed.VectorFile(writer, 3)
        vectors.write(np.ones([2, 3]))
        writer.flush()
        with pytest.raises(ValueError, match=r"allow_pickle"):
            np.load(path)
        vectors.write(np.zeros([1, 3]))
        vectors.finish()
    np.testing.assert_array_equal(np.load(path), [[1, 1, 1], [1, 1, 1], [0, 0, 0]])
    assert np.load(path, mmap_mode="r").dtype == np.float32


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_arrays_one_after_the_other(tmp_path, mode):
    """With `>>`, the start cannot be written last, though the file can be sought in."""
    path = tmp_path / "vectors.npy"
    path.write_bytes(b"")
    with open(path, mode) as writer:
        for number in (1, 2):
            vectors = embed.VectorFile(writer, 2)
            vectors.write(np.full([number, 2], number))
            vectors.finish()
            writer.seek(0, os.SEEK_END)
    with open(path, "rb") as reader:
        assert [np.load(reader).tolist() for _ in range(2)] == [[[1, 1]], [[2, 2], [2, 2]]]


BAD = b"word1\nword2\tword3\n\xff\na\tb\tc\n\nword4"


def test_no_lines_are_an_empty_array(embedder):
    writer = io.BytesIO()
    assert embed.write_vectors(embedder, io.BytesIO(b""), writer, print) == 0
    assert np.load(io.BytesIO(writer.getvalue())).shape == (0, 32)


def test_the_command_answers_what_it_can(embedder, tmp_path, capsysbinary):
    """The rows of lines that cannot be answered are NaN."""
    (tmp_path / "texts").write_bytes(BAD)
    assert embed.main(["embed", ENCODER, str(tmp_path / "texts"), "--layers=-1,-2"]) == 1
    out, err = capsysbinary.readouterr()
    assert err.decode().splitlines() == [
        "embed: line 3: byte 0 is not UTF-8",
        "embed: line 4: has 2 tabs; a tab stands between the two texts of a pair",
        "2 lines were answered with an error.",
    ]
    vectors = np.load(io.BytesIO(out))
    assert np.isnan(vectors).all(axis=1).tolist() == [False, False, True, True, False, False]
    texts = ["word1", ("word2", "word3"), "", "word4"]
    np.testing.assert_allclose(vectors[[0, 1, 4, 5]], embedder(texts), rtol=0, atol=1e-5)


def test_an_array_in_a_pipe():
    output, entrance = os.pipe()
    with open(entrance, "wb") as writer:
        vectors = embed.VectorFile(writer, 3)
        vectors.write(np.arange(6).reshape([2, 3]))
        vectors.finish()
    with open(output, "rb") as reader:
        array = np.load(io.BytesIO(reader.read()))
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])


def test_lines_of_json_are_laid_out_as_by_extract_features(embedder):
    writer = io.StringIO()
    assert embed.write_features(embedder, [-1, -2], io.BytesIO(BAD), writer, print) == 2
    lines = [json.loads(line) for line in writer.getvalue().splitlines()]
    assert [line["linex_index"] for line in lines] == list(range(6))
    assert lines[2] == {"linex_index": 2, "error": "line 3: byte 0 is not UTF-8"}
    tokens, vectors = embedder.tokens([("word2", "word3")])[0]
    assert [feature["token"] for feature in lines[1]["features"]] == tokens
    for place, feature in enumerate(lines[1]["features"]):
        assert [layer["index"] for layer in feature["layers"]] == [-1, -2]
        for number, layer in enumerate(feature["layers"]):
            assert layer["values"] == pytest.approx(vectors[number, place], abs=1e-5)
            assert layer["values"] == [round(value, 6) for value in layer["values"]]


def test_a_network_without_a_pooler(tmp_path):
    with pytest.raises(ValueError, match=r"^pooling='pooled': .*hf_masked_lm does not have a pool"):
        Embedder(str(fixtures.DATA / "hf_masked_lm"), "pooled")


def test_a_pair_for_a_network_of_one_segment(tmp_path):
    config = BertConfig(**bert_config(20, type_vocab_size=1))
    vocab_file = str(tmp_path / "other.txt")
    write_vocab([*SPECIAL_TOKENS, *words(20)], vocab_file)
    fixtures.write_tf1(tmp_path, config, fixtures.random_weights(config), vocab_file=vocab_file)
    embedder = Embedder(str(tmp_path))
    assert embedder(["w1"]).shape == (1, 16)
    with pytest.raises(ValueError, match=r"^texts\[1\] is a pair, but the network has one type"):
        embedder(["w1", ("w1", "w2")])
    with pytest.raises(ValueError, match=r"^texts\[0\] is 3; it must be a string or a pair of"):
        embedder([3])


def test_the_bigger_graph_shares_the_variables(checkpoint):
    embedder = Embedder(str(checkpoint))
    embedder([" ".join(["w1"] * 30)])
    with embedder._session.graph.as_default():
        names = [variable.op.name for variable in tf.global_variables()]
    expected = network_variables.encoder_shapes(embedder._config)
    assert len(names) == len(set(names)) == len(expected)
    embedder.close()


def test_a_single_string_is_not_a_list_of_texts(embedder):
    for function in (embedder, embedder.tokens):
        with pytest.raises(ValueError, match=r"^texts is a single string; give a list of texts"):
            function("word1 word2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [1.0]}, r"layers: 1\.0 is not a layer of the network"),
        ({"layers": "12"}, "layers='12': must be a list of numbers of layers"),
        ({"layers": -1}, "layers=-1: must be a list of numbers of layers"),
        ({"max_seq_length": "12"}, "max_seq_length='12': must be from 5 to"),
        ({"max_seq_length": 12.0}, r"max_seq_length=12\.0: must be from 5 to"),
        ({"batch_size": "3"}, "batch_size='3': must be from 1 to"),
        ({"long_texts": "window"}, "long_texts='window': must be one of cut, head_tail, windows"),
        ({"doc_stride": 3}, "doc_stride=3: is for long_texts='windows'"),
        ({"long_texts": "windows", "doc_stride": 0}, "doc_stride=0: must be from 1 to 22"),
        ({"long_texts": "windows", "doc_stride": 23}, "doc_stride=23: must be from 1 to 22"),
    ],
)
def test_arguments_of_other_types_are_named(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Embedder(ENCODER, **arguments)


def test_the_stride_of_a_network_does_not_suit_every_length(tmp_path):
    path = fixtures.changed(tmp_path, "hf_encoder")
    config = json.loads((path / "config.json").read_text())
    own = {"class": config["architectures"][0], "long_texts": "windows", "doc_stride": 10}
    config["bert_estimator"] = own
    (path / "config.json").write_text(json.dumps(config))
    assert Embedder(str(path), max_seq_length=12).long_texts.doc_stride == 10
    assert Embedder(str(path), max_seq_length=11, long_texts="cut").long_texts.choice == "cut"
    with pytest.raises(ValueError, match=r"^doc_stride=10: must be from 1 to 9, the tokens of a"):
        Embedder(str(path), max_seq_length=11)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format=jsonl", "--pooling=mean"], "--pooling is for --format=npy"),
        (["--pooling=pooled", "--layers=-1"], "--layers is not for --pooling=pooled"),
        (["--format=jsonl", "--long_texts=windows"], "--long_texts=windows is for --format=npy"),
    ],
)
def test_flags_without_effect_are_refused(capsys, flags, message):
    with pytest.raises(SystemExit):
        embed.main(["bert-embed", ENCODER, *flags])
    assert message in capsys.readouterr().err


LONG = " ".join(f"word{i % 35}" for i in range(40))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "pooled"])
def test_windows_of_a_long_text_are_averaged_by_their_tokens(pooling):
    arguments = {"pooling": pooling, "max_seq_length": 12, "batch_size": 3}
    windows = Embedder(ENCODER, long_texts="windows", doc_stride=4, **arguments)
    cut = Embedder(ENCODER, **arguments)
    words = LONG.split()
    starts = range(0, 36, 4)
    parts = cut([" ".join(words[start : start + 10]) for start in starts]).astype(np.float64)
    lengths = [len(words[start : start + 10]) + 2 for start in starts]
    expected = np.average(parts, axis=0, weights=lengths)
    found = windows(["word1", LONG, ("word2", "word3")])
    assert found.dtype == np.float32 and windows.num_cut == 1
    np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-6)
    # Texts that are not long keep their vectors, bit for bit.
    for text in ("word1", ("word2", "word3"), ""):
        np.testing.assert_array_equal(windows([text]), cut([text]))


def test_of_long_texts_the_beginning_and_the_end_are_read():
    found = Embedder(ENCODER, max_seq_length=10, long_texts="head_tail")
    words = LONG.split()
    expected = Embedder(ENCODER)([" ".join([*words[:2], *words[-6:]])])
    np.testing.assert_allclose(found([LONG]), expected, rtol=0, atol=1e-6)
    (tokens, _), *_ = found.tokens([LONG])
    assert tokens == ["[CLS]", *words[:2], *words[-6:], "[SEP]"]


def test_tokens_of_windows_are_refused():
    with pytest.raises(ValueError, match=r"^long_texts='windows' is for vectors of texts: a token"):
        Embedder(ENCODER, long_texts="windows").tokens([LONG])


@pytest.mark.parametrize("choice", ["head_tail", "windows", None])
def test_tokens_are_read_as_in_the_network_s_training(tmp_path, capsysbinary, choice):
    """But for windows, which they are not in."""
    network, texts = shutil.copytree(ENCODER, tmp_path / "network"), tmp_path / "texts.txt"
    config = json.loads((network / "config.json").read_text())
    if choice:
        config["bert_estimator"] = {"class": config["architectures"][0], "long_texts": choice}
    (network / "config.json").write_text(json.dumps(config))
    texts.write_text(f"{LONG}\n")
    flags = ["--format=jsonl", "--max_seq_length=12"]
    assert embed.main(["bert-embed", str(network), str(texts), *flags]) == 0
    row = json.loads(capsysbinary.readouterr().out)
    kept = "head_tail" if choice == "head_tail" else "cut"
    ((tokens, _),) = Embedder(ENCODER, long_texts=kept, max_seq_length=12).tokens([LONG])
    assert [feature["token"] for feature in row["features"]] == tokens


def test_the_command_reads_windows(tmp_path, capsysbinary):
    (tmp_path / "texts.txt").write_text(f"word1\n{LONG}\n")
    flags = ["--long_texts=windows", "--doc_stride=5", "--max_seq_length=12"]
    assert embed.main(["bert-embed", ENCODER, str(tmp_path / "texts.txt"), *flags]) == 0
    out, err = capsysbinary.readouterr()
    options = {"long_texts": "windows", "doc_stride": 5, "max_seq_length": 12}
    expected = Embedder(ENCODER, **options)(["word1", LONG])
    np.testing.assert_array_equal(np.load(io.BytesIO(out)), expected)
    assert err.endswith(b"1 of the texts were read in windows of 12 tokens.\n")


def test_texts_of_like_lengths_are_computed_together(embedder, monkeypatch):
    shapes, run = [], embedder._session.run

    def note(fetches, feed=None):
        shapes.append({values.shape for values in feed.values()})
        return run(fetches, feed)

    texts = ["word1 " * number for number in (3, 0, 9, 1, 4, 2)]
    alone = np.concatenate([embedder([text]) for text in texts])
    monkeypatch.setattr(embedder._session, "run", note)
    np.testing.assert_allclose(embedder(texts), alone, rtol=0, atol=1e-5)
    assert shapes == [{(4, 11)}, {(2, 3)}]
    assert [len(tokens) for tokens, _ in embedder.tokens(texts)] == [5, 2, 11, 3, 6, 4]


def test_an_exported_model_is_not_opened(tmp_path):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "task.json").write_text("{}")
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match=r"is an exported model, .* give the directory of the run"):
        Embedder(str(tmp_path))
