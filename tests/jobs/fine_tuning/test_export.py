"""Exports of bfloat16 networks: their weights are rounded once, and their answers are the same."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import bert_config, classifier_flags, pairs, words, write_pairs

import run_classifier
from bert_estimator.jobs.fine_tuning import export
from bert_estimator.serving import exported_model
from bert_estimator.serving.predictor import Predictor
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

# Halfway between two of bfloat16, up and down; what is too large; what is almost 0.
VALUES = np.array(
    [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, 3.4e38, -np.inf, np.nan, -0.0, 1e-40, 0.1], np.float32
)


def write_checkpoint(path):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("w", initializer=VALUES, use_resource=True)
        tf.get_variable("kept", initializer=VALUES)
        tf.get_variable("slot", initializer=0.0)
        tf.train.create_global_step()
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(path / "model.ckpt"), 7)


@pytest.mark.parametrize("use_resource", [False, True])
def test_restoring_rounds_as_a_cast_does(tmp_path, use_resource):
    checkpoint = write_checkpoint(tmp_path)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        w = tf.get_variable("w", VALUES.shape, tf.bfloat16, use_resource=use_resource)
        kept = tf.get_variable("kept", VALUES.shape, use_resource=use_resource)
        step = tf.train.create_global_step()
        cast = tf.cast(VALUES, tf.bfloat16)
        saver = export.RoundingSaver()
        number = len(graph.get_operations())
        saver.restore(session, checkpoint)
        assert len(graph.get_operations()) == number
        w, kept, step, cast = session.run([w, kept, step, cast])
        np.testing.assert_array_equal(w.view(np.uint16), cast.view(np.uint16))
        np.testing.assert_array_equal(kept.view(np.uint32), VALUES.view(np.uint32))
        assert step == 0


def test_a_checkpoint_that_does_not_fit(tmp_path):
    checkpoint = write_checkpoint(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("w", [2], tf.bfloat16)
        tf.get_variable("new", [1])
        with pytest.raises(ValueError, match=r"(?s)  w: \[2\] in the model.*  new: not in the "):
            export.RoundingSaver().restore(session, checkpoint)


def stored_dtypes(export):
    """Returns a dict of a variable's name -> its dtype in a SavedModel."""
    return tf.train.load_checkpoint(f"{export}/variables/variables").get_variable_to_dtype_map()


@pytest.mark.parametrize("export_inputs", ["text", "ids"])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_the_script_exports_what_it_predicts_with(tmp_path, kind, export_inputs):
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(tmp_path / "vocab.txt"))
    (tmp_path / "bert_config.json").write_text(
        json.dumps({**bert_config(30), "initializer_range": 0.3})
    )
    for name, number, seed in (("train", 16, 1), ("dev", 7, 2)):
        write_pairs(tmp_path / f"{name}.tsv", pairs(number, seed))
    flags = classifier_flags(
        tmp_path, tmp_path / "run", do_train=True, do_predict=True, do_export=True, precision=kind,
        use_tpu=False, predict_file=tmp_path / "dev.tsv", export_inputs=export_inputs,
    )  # fmt: skip
    assert run_classifier.main(["run_classifier.py", *flags]) == 0

    dtypes = stored_dtypes(exported_model.find(str(tmp_path / "run")))
    kernels = [name for name in dtypes if name.endswith(("kernel", "output_weights"))]
    others = [name for name in dtypes if "LayerNorm" in name or "embeddings" in name]
    assert len(kernels) == 8
    assert len(others) == 3 + 2 * 3
    assert {dtypes[name].name for name in kernels} == {kind}
    assert {dtypes[name].name for name in others} == {"float32"}

    found = Predictor(str(tmp_path / "run")).predict([(a, b) for a, b, _ in pairs(7, 2)])
    expected = np.loadtxt(tmp_path / "run" / "test_results.tsv", delimiter="\t")
    np.testing.assert_allclose(found["probabilities"], expected, rtol=0, atol=1e-6)
