"""SentencePiece in a graph against the tokenizer in Python; needs tensorflow-text."""

import builtins
import random
import re
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow.compat.v1 as tf

from bert_estimator.command_line import flags
from bert_estimator.jobs.fine_tuning import export
from bert_estimator.serving.graph import graph_sentencepiece, graph_tokenizer, tag_model, text_model
from bert_estimator.serving.graph.graph_sentencepiece import GraphSentencePiece
from bert_estimator.tokenization import CLS, MASK, SEP, Casing, SentencePieceTokenizer
from bert_estimator.tokenization.sentencepiece_tokenizer import preprocess
from input_pipelines.tasks import word_forms
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features, TagFeatures
from input_pipelines.tasks.tag_files import Sentence
from tests.serving.graph.test_graph_wordpiece import GOLDENS, NASTY

needs_text = pytest.mark.skipif(
    bool(graph_sentencepiece.load_operations()), reason="needs tensorflow-text"
)

STRINGS = NASTY["strings"]


IS_OLD = tuple(map(int, tf.__version__.split(".")[:2])) < graph_sentencepiece._FAST_SINCE
needs_fast = pytest.mark.skipif(IS_OLD, reason="unigram models need TensorFlow 2.20")


CASINGS = {"uncased": (True,), "cased": (False,), "uncased with accents": (True, False)}


def golden(kind, casing="uncased"):
    path = str(GOLDENS.parent / f"{kind}.model")
    return where_it_works(SentencePieceTokenizer(path, *CASINGS[casing]))


def where_it_works(tokenizer):
    """Returns a tokenizer; skips the test if TensorFlow is too old for its model."""
    if IS_OLD and graph_sentencepiece._is_fast(tokenizer.serialized_model()):
        pytest.skip("unigram models need TensorFlow 2.20")
    return tokenizer


@pytest.fixture(
    scope="module",
    params=[(kind, casing) for kind in ("unigram", "bpe") for casing in CASINGS],
    ids="-".join,
)
def tokenizer(request):
    return golden(*request.param)


def differences(tokenizer, texts):
    """Returns text -> (pieces in the graph, pieces of the tokenizer) if the pieces differ."""
    with tf.Graph().as_default(), tf.Session() as session:
        encoded = tf.constant([text.encode() for text in texts], tf.string, [len(texts)])
        found = session.run(GraphSentencePiece(tokenizer)(encoded)).to_list()
    names = tokenizer.convert_ids_to_tokens
    return {
        text: (names(ids), names(tokenizer.encode(text)))
        for text, ids in zip(texts, found, strict=True)
        if ids != tokenizer.encode(text)
    }


@needs_text
def test_strings(tokenizer):
    """They are nasty; of words and numbers; with sigmas; of pieces that are equally likely."""
    generator = random.Random(3)
    characters = "".join(STRINGS) + " \t\n.,!?``''ΣσςİıßÅΔΩ가힣\u0301\u00ad\u200d\ufeff\u2581\0"
    texts = ["".join(generator.choices(characters, k=generator.randint(0, 30))) for _ in range(500)]
    texts += [character * number for character in "a0-.,中" for number in range(1, 400, 7)]
    texts += ["2019, 1,000,000, 3,500,000", "9,9,9, 2,", "ΔΣ ΔΣ. ΔΣ\u0301 ΔΣ1 \U0001d6b7Σ aΣb ΣΔΣ"]
    texts += ["[CLS] [MASK]<pad> <unk>", "", " \n", "``a'' '''b"]
    assert len(STRINGS) >= 280
    assert differences(tokenizer, [*STRINGS, *texts]) == {}
    pieces = tokenizer.tokenize("2019, 9,")
    assert pieces.count(",") == 2  # pieces were split again


@needs_text
def test_bytes_that_are_not_utf_8_are_left_out():
    with tf.Graph().as_default(), tf.Session() as session:
        found = GraphSentencePiece(golden("unigram"))(tf.constant([b"a\xff b\xc3", b"a b"]))
        first, second = session.run(found).to_list()
    assert first == second == golden("unigram").encode("a b")


@needs_text
@pytest.mark.parametrize("is_pair", [True, False])
def test_features_are_those_of_training(is_pair):
    tokenizer, length = golden("unigram"), 13
    others = [STRINGS[(7 * i + 3) % len(STRINGS)] if is_pair else None for i in range(len(STRINGS))]
    examples = [Example(*texts, None) for texts in zip(STRINGS, others, strict=True)]
    expected = Features(examples, tokenizer, length).batch(np.arange(len(examples)))
    columns = [STRINGS, others] if is_pair else [STRINGS]
    with tf.Graph().as_default(), tf.Session() as session:
        texts = [tf.constant([text.encode() for text in column]) for column in columns]
        in_graph = graph_tokenizer.of(tokenizer)
        found = session.run(text_model.features_of(in_graph, texts, tokenizer, length))
    longest = expected["input_mask"].sum(axis=1).max()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name][:, :longest], err_msg=name)


@needs_text
def test_windows_of_tags_are_those_of_training():
    tokenizer, length = golden("unigram"), 9
    texts = [" ".join(STRINGS[first : first + 5]) for first in range(0, len(STRINGS), 5)]
    with tf.Graph().as_default(), tf.Session() as session:
        words = tag_model.words_of(tf.constant([text.encode() for text in texts]))
        in_graph = graph_tokenizer.of(tokenizer)
        features, places = session.run(tag_model.windows_of(in_graph, words, tokenizer, length))
    sentences = [Sentence(tuple(word_forms.split(text, word_forms.SPACES))) for text in texts]
    expected = TagFeatures(sentences, tokenizer, length)
    batch = expected.batch(np.arange(len(expected)))
    np.testing.assert_array_equal(places, np.argwhere(batch["label_mask"]))
    longest = batch["input_mask"].sum(axis=1).max()
    for name, value in features.items():
        np.testing.assert_array_equal(value, batch[name][:, :longest], err_msg=name)


# Options of `trained`: features that few models use.
OTHER_FEATURES = [
    {"model_type": "char"},
    {"byte_fallback": True, "vocab_size": 320},
    {"add_dummy_prefix": False},
    {"remove_extra_whitespaces": False},
    {"normalization_rule_name": "identity"},
    {"split_by_whitespace": False},
    {"user_defined_symbols": ["at o", "<x>"]},
    {"model_type": "bpe", "byte_fallback": True, "vocab_size": 320},
]


def trained(path, **options):
    """Returns the tokenizer of a model with features that ours and ALBERT's do not use."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat in 2,019, or 1,000, days"] * 20),
        model_prefix=str(path / "model"),
        vocab_size=options.pop("vocab_size", 40),
        control_symbols=[CLS, SEP, MASK],
        pad_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return where_it_works(SentencePieceTokenizer(str(path / "model.model")))


@needs_text
@pytest.mark.parametrize("options", OTHER_FEATURES, ids=str)
def test_models_with_other_features(tmp_path, options):
    tokenizer = trained(tmp_path, **options)
    assert differences(tokenizer, [*STRINGS, *graph_tokenizer.probes(tokenizer)]) == {}


def test_the_probes_repeat_every_piece(tmp_path):
    """Equal scores are summed in different orders, so equally likely pieces are chosen otherwise.

    Some versions of both libraries did so for "000000000 0".
    """
    tokenizer = trained(tmp_path, treat_whitespace_as_suffix=True)
    assert "000000000 0" in set(graph_tokenizer.probes(tokenizer))


@needs_text
def test_the_probes_show_an_operation_that_is_not_for_a_model(monkeypatch, capsys):
    import tensorflow_text

    if IS_OLD:
        pytest.skip("the fast operation would end the process")
    tokenizer = golden("bpe", "cased")
    assert text_model.check_texts(tokenizer, graph_tokenizer.probes(tokenizer)) > 1000
    fast = tensorflow_text.FastSentencepieceTokenizer
    monkeypatch.setattr(graph_sentencepiece, "_operation", fast)
    with pytest.raises(text_model.TextDifferenceError, match="the graph of the exported model spl"):
        text_model.check_texts(tokenizer, graph_tokenizer.probes(tokenizer))
    # Without the flag the export takes ids, and says why; with it this is an error.
    vocab_file = str(GOLDENS.parent / "bpe.model")
    why = f"tensorflow-text cannot do the same as {vocab_file}; for example, the graph of the exp"

    def why_not():
        return export.why_not(vocab_file, Casing(False))

    with pytest.raises(flags.FlagError, match=f"^--export_inputs=text: {re.escape(why)}"):
        export.takes_text("text", why_not, str)
    assert not export.takes_text(None, why_not, str)
    assert capsys.readouterr().out.startswith(f"The SavedModel takes ids: {why}")


@needs_text
def test_what_an_old_operation_would_do_with_large_batches_is_not_tried(monkeypatch):
    unigram, bpe = golden("unigram"), golden("bpe")
    monkeypatch.setattr(tf, "__version__", "2.19.1")
    why_not = graph_tokenizer.why_not(unigram)
    assert why_not.endswith("with large batches before TensorFlow 2.20, and this is 2.19.1")
    with pytest.raises(ImportError, match=re.escape(why_not)):
        graph_tokenizer.of(unigram)
    assert graph_tokenizer.why_not(bpe) == ""


@needs_text
@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS)
def test_every_character(casing):
    """Each is cleaned up alike, whether the vocabulary knows it or not, and gives the same ids."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    tokenizer = golden("unigram", casing)
    texts = [f"a{chr(code)}b ΔΣ{chr(code)} Σ" for code in codes]
    for first in range(0, len(texts), 100_000):
        some = texts[first : first + 100_000]
        expected = [preprocess(text, *CASINGS[casing]).encode() for text in some]
        with tf.Graph().as_default(), tf.Session() as session:
            in_graph = GraphSentencePiece(tokenizer)
            given = tf.constant([text.encode() for text in some])
            cleaned = in_graph._preprocessed(tf.strings.unicode_decode(given, "UTF-8"))
            session.run(tf.tables_initializer())
            found = session.run(cleaned.texts).tolist()
        wrong = [each for each in zip(some, found, expected, strict=True) if each[1] != each[2]]
        assert wrong == []
        assert differences(tokenizer, some) == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module", name="tensorflow_text"), "(it is not installed)"),
        (ModuleNotFoundError("No module 'x'", name="x"), "(No module 'x')"),
        (tf.errors.NotFoundError(None, None, "a.so: undefined symbol: b"), "(a.so: undefined"),
    ],
)
def test_what_is_missing(monkeypatch, error, reason):
    own = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "tensorflow_text":
            raise error
        return own(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "tensorflow_text", raising=False)
    found = graph_sentencepiece.load_operations()
    assert "needs tensorflow-text of TensorFlow" in found and reason in found
    assert found.endswith(
        f'pip install "tensorflow-text=={".".join(tf.__version__.split(".")[:2])}.*"'
    )
    with pytest.raises(ImportError, match="needs tensorflow-text"):
        GraphSentencePiece(golden("unigram"))
