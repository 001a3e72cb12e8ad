import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from input_pipelines.unigram import unigram_cross_entropy


def write(path, rows):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for ids, weights in rows:
            example = tf.train.Example()
            example.features.feature["masked_lm_ids"].int64_list.value.extend(ids)
            example.features.feature["masked_lm_weights"].float_list.value.extend(weights)
            writer.write(example.SerializeToString())
    return str(path)


def test_cross_entropy_by_hand(tmp_path):
    files = [
        write(tmp_path / "a", [([1, 2, 0], [1.0, 1.0, 0.0]), ([0, 0, 0], [0.0, 0.0, 0.0])]),
        write(tmp_path / "b", [([3, 1, 0], [1.0, 0.5, 0.0])]),
    ]
    # With one added to each count the probabilities are 1/10, 5/10, 3/10 and 1/10.
    found = unigram_cross_entropy(",".join(files), np.array([0, 4, 2, 0]))
    expected = -(1.5 * np.log(0.5) + np.log(0.3) + np.log(0.1)) / 3.5
    assert found == pytest.approx(expected, abs=1e-14)


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"a: record 0 .*masked_lm_ids holds 4; it .* 0 to 3"):
        unigram_cross_entropy(write(tmp_path / "a", [([4], [1.0])]), np.ones(4))
    with pytest.raises(ValueError, match=r"b.*: no record has a masked token"):
        unigram_cross_entropy(write(tmp_path / "b", [([0], [0.0])]), np.ones(4))
