"""Tests what the TPU's compiler reports of a training step."""

import dataclasses

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.model_fns import update
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.tpu.program import compile_report, devices, stablehlo

pytestmark = pytest.mark.usefixtures("tpu_compiler")

WIDTH = 256
ROWS = 8  # per core


def model_fn(features, mode, params):
    """Trains the square matrix of one product with Adam; x is [params["batch_size"], WIDTH]."""
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH])
    loss = tf.reduce_mean(tf.matmul(features["x"], kernel) ** 2)
    optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.1))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def shared_model_fn(features, mode, params):
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH])

    def make_loss_fn(step):
        return lambda features, first_row: (tf.reduce_mean(tf.matmul(features["x"], kernel)), {})

    return update.UpdateRule("adamw", WarmupPolynomialDecay(0.1, 9, 1)).train_spec(
        make_loss_fn, features
    )


def report(name, tmp_path, rows=ROWS, cores_per_replica=1):
    cores = len(compile_report.find(name))
    batch = rows * cores // cores_per_replica
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(num_cores_per_replica=cores_per_replica))
    estimator = tpu.TPUEstimator(model_fn, str(tmp_path), config, train_batch_size=batch)
    lowered = estimator.lower(lambda params: {"x": tf.zeros([params["batch_size"], WIDTH])}, cores)
    return compile_report.report(lowered, name, batch, cores_per_replica)


@pytest.fixture(scope="module")
def on_v3(tmp_path_factory):
    return report("v3:2x2", tmp_path_factory.mktemp("v3"))


@pytest.mark.parametrize("name", ["v2:2x2", "v4:2x2x1", "v5e:2x2", "v6e:2x2"])
def test_a_training_step_compiles(name, tmp_path):
    found = report(name, tmp_path)
    assert found.fits
    assert found.tpu == name.split(":")[0]
    assert found.batch_per_core == ROWS


def test_memory_by_kind(on_v3):
    matrix = 4 * WIDTH**2
    assert on_v3.memory["weights"] == matrix
    # Adam has m, v, and two powers of beta in float32; the global step is int64.
    assert on_v3.memory["optimizer_state"] == 2 * matrix + 2 * 4 + 8
    assert on_v3.memory["input"] == 4 * ROWS * WIDTH + 4  # and the number of the core
    assert on_v3.memory["padding"] >= 0
    kinds = [size for kind, size in on_v3.memory.items() if kind != "total"]
    assert on_v3.memory["total"] == sum(kinds)
    # The temporaries hold at least the gradient. The state is updated in place.
    assert on_v3.memory["temporaries"] >= matrix
    assert on_v3.memory["outputs"] < matrix


def test_arithmetic_and_time(on_v3):
    # One product is in the forward pass, and one in the gradient of the matrix.
    assert on_v3.flops == 2 * 2 * ROWS * WIDTH**2
    assert on_v3.compiler_secs > on_v3.flops / on_v3.peak
    assert on_v3.least_step_secs == on_v3.compiler_secs + on_v3.summing_secs


def test_what_the_cores_sum(on_v3):
    assert on_v3.summed_bytes == 4 * WIDTH**2
    assert on_v3.summing_secs == pytest.approx(2 * on_v3.summed_bytes * 3 / 4 / (4 * 82e9))


def test_what_cores_sum_that_share_an_update(tmp_path):
    """A part that hosts sum counts once, when each host makes it; what is gathered does not."""
    config = tpu.RunConfig()
    estimator = tpu.TPUEstimator(shared_model_fn, str(tmp_path), config, train_batch_size=8)

    def sums(num_hosts):
        lowered = estimator.lower(lambda params: {"x": tf.zeros([8, WIDTH])}, 8, num_hosts)
        return lowered.num_shards, stablehlo.summed_bytes(lowered.text)

    weight_and_loss, global_norm = 4 * WIDTH**2 + 4, 4
    assert sums(num_hosts=8) == (1, weight_and_loss)
    assert sums(num_hosts=2) == (4, weight_and_loss + global_norm)
    assert sums(num_hosts=1) == (8, weight_and_loss + global_norm)
    with pytest.raises(ValueError, match="num_hosts=3 must divide the number of cores, 8"):
        sums(num_hosts=3)


def test_a_program_newer_than_jaxlib_can_read(on_v3, tmp_path, monkeypatch):
    jax = devices.import_jax()

    def unreadable(compiled):
        raise jax.errors.JaxRuntimeError(
            "INTERNAL: RET_CHECK failure (hlo_instruction.cc:390) proto.operand_ids_size() == "
            "*arity async-update instruction should have 1 operands but sees 3"
        )

    monkeypatch.setattr(jax.stages.Compiled, "as_text", unreadable)
    assert report("v3:2x2", tmp_path) == dataclasses.replace(on_v3, compiler_secs=None)
    of_two = report("v3:2x2", tmp_path / "2", cores_per_replica=2)
    assert (of_two.summed_bytes, of_two.summing_secs) == (None, None)
    assert "summed between cores: not given" in "\n".join(of_two.lines())


def test_the_report_in_words(on_v3):
    text = "\n".join(on_v3.lines())
    assert text.startswith("v3:2x2: 8 cores of TPU v3, 8 of 64 examples each (libtpu ")
    assert "15.480  of 16: it fits" in text
    assert "without communication" in text
    unbounded = dataclasses.replace(on_v3, compiler_secs=None)
    assert "lower bound of a step: not given" in "\n".join(unbounded.lines())
    assert unbounded.least_step_secs == on_v3.flops / on_v3.peak + on_v3.summing_secs


def test_a_step_that_does_not_fit(tmp_path):
    rows = 2**24
    found = report("v2:2x2", tmp_path, rows)
    assert not found.fits
    assert found.memory["total"] > found.memory["input"] >= 4 * rows * WIDTH
    text = "\n".join(found.lines())
    assert "IT DOES NOT FIT" in text
    assert "total, at least" in text


def test_the_compiler_s_refusals():
    new = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (37.44G) exceeds available HBM (7.48G). HLO module: x."
    )
    assert compile_report.bytes_needed(new) == int(37.44 * 2**30)
    old = "XLA:TPU compile permanent error. Used 512.5M of 256M hbm. Exceeded hbm capacity by"
    assert compile_report.bytes_needed(old) == int(512.5 * 2**20)
    assert compile_report.bytes_needed("INTERNAL: something else (3.00G)") is None


def test_a_batch_that_does_not_divide(tmp_path):
    estimator = tpu.TPUEstimator(model_fn, str(tmp_path), tpu.RunConfig(), train_batch_size=12)
    with pytest.raises(ValueError, match="train_batch_size=12 must be divisible by the 8 cores"):
        estimator.lower(lambda params: None, 8)
