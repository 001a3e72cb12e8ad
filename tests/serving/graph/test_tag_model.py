"""Windows in the graph are the windows of training, on strange words too."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_tokenizer, tag_model
from bert_estimator.tokenization import FullTokenizer, write_vocab
from input_pipelines.tasks import word_forms
from input_pipelines.tasks.features import TagFeatures
from input_pipelines.tasks.tag_files import Sentence
from tests.serving.graph.test_graph_wordpiece import NASTY

STRINGS = NASTY["strings"]
TEXTS = [
    *STRINGS,
    *[" ".join(STRINGS[first : first + 5]) for first in range(0, len(STRINGS), 5)],
    "", "  ", "\u3000a\x85b\x1cc\u2028",
]  # fmt: skip


@pytest.mark.parametrize(
    "length", [7, *(pytest.param(length, marks=pytest.mark.slow) for length in (3, 5, 16, 40))]
)
def test_windows_are_those_of_training(tmp_path, length):
    write_vocab(NASTY["vocab"], str(tmp_path / "vocab.txt"))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    with tf.Graph().as_default(), tf.Session() as session:
        words = tag_model.words_of(tf.constant([text.encode() for text in TEXTS]))
        in_graph = graph_tokenizer.of(tokenizer)
        windows = tag_model.windows_of(in_graph, words, tokenizer, length)
        words, (features, places) = session.run([words, windows])
    expected_words = [word_forms.split(text, word_forms.SPACES) for text in TEXTS]
    assert [[word.decode() for word in row] for row in words.to_list()] == expected_words
    expected = TagFeatures([Sentence(tuple(row)) for row in expected_words], tokenizer, length)
    assert len(expected) > len(TEXTS)
    batch = expected.batch(np.arange(len(expected)))
    np.testing.assert_array_equal(places, np.argwhere(batch["label_mask"]))
    assert set(features) == {"input_ids", "input_mask", "segment_ids"}
    longest = batch["input_mask"].sum(axis=1).max()
    for name, value in features.items():
        assert value.dtype == np.int32
        np.testing.assert_array_equal(value, batch[name][:, :longest], err_msg=name)
