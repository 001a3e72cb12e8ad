"""The estimator that a configuration asks for, and the errors of what cannot be."""

import dataclasses
import json
import pathlib
import re

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import OPTIMIZER_NAMES
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import facts, job_estimator
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.groups import NetworkFlags
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.jobs.pretraining.pretraining_config import ScheduleFlags
from bert_estimator.system import memory


def config_of(tmp_path, **changes):
    values = {
        "tpu_name": None,
        "use_tpu": True,
        "num_tpu_cores": None,
        "num_cores_per_replica": 1,
        "output_dir": str(tmp_path),
        "random_seed": 1,
        "save_checkpoints_steps": 10,
        "iterations_per_loop": 500,
        "optimizer": "lamb",
        "train_batch_size": 8,
        "eval_batch_size": 8,
        "micro_batch_size": None,
        "max_seq_length": 16,
        "do_train": True,
    }
    kind = ClassificationConfig if "predict_batch_size" in changes else JobConfig
    sources = {"predict_batch_size": provenance.FLAG}
    return flags.build(kind, {**values, **changes}, sources=sources)


def find_cores(config):
    """Returns the configuration fitted to the cores found, and their master."""
    cores = config.devices.find()
    return config.fitted(cores), cores.master


def model_fn(features, labels, mode, params):
    raise AssertionError("not to be called before there is something to do")


def test_the_estimator_is_that_of_the_flags(tmp_path):
    estimator = job_estimator.make(config_of(tmp_path), model_fn)
    assert estimator.model_dir == str(tmp_path)
    assert estimator.config.save_checkpoints_steps == 10
    assert estimator.config.tpu_config.iterations_per_loop == 500
    assert (
        estimator.config.log_step_count_steps == 100
    )  # a record at the end of a loop, if 100 steps have passed
    assert estimator.config.log_every_secs == 10
    for steps, every in ((1_000_000, 100), (1000, 50), (70, 3), (5, 1)):  # 20 points, if there are
        estimator = job_estimator.make(config_of(tmp_path), model_fn, num_train_steps=steps)
        assert estimator.config.log_step_count_steps == every
        assert estimator.config.tpu_config.experimental_host_call_every_n_steps == every
    estimator = job_estimator.make(config_of(tmp_path, log_every_secs=0), model_fn)
    assert estimator.config.log_every_secs is None
    assert estimator.config.tf_random_seed == 1


@pytest.mark.parametrize(("master", "times"), [("", 1), ("rehearse:2", 0)])
def test_freed_memory_is_kept_in_sessions_alone(tmp_path, monkeypatch, master, times):
    calls = []
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: calls.append(1))
    job_estimator.make(config_of(tmp_path), model_fn, master)
    assert len(calls) == times


@pytest.mark.parametrize("gpus", [[], ["a GPU"]])
def test_a_training_has_the_rewriting_that_helps_its_steps(tmp_path, monkeypatch, gpus):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    config = job_estimator.make(config_of(tmp_path), model_fn).config
    training, other = config.session_settings(training=True), config.session_settings()
    assert other == tpu.RunConfig().session_settings()
    rewriting = training.graph_options.rewrite_options.optimizers
    assert ("remap" in rewriting) != bool(gpus)
    del rewriting[:]
    assert training == other


def test_a_name_of_no_cores(tmp_path, monkeypatch):
    message = "pod-1: master='pod-1' does not name a TPU"
    with pytest.raises(FlagError, match=f"^--tpu_name={message}"):
        find_cores(config_of(tmp_path, tpu_name="pod-1"))
    monkeypatch.setenv("TPU_NAME", "pod-1")
    with pytest.raises(FlagError, match=rf"^\$TPU_NAME={message}"):
        find_cores(config_of(tmp_path))


def test_a_micro_batch_is_a_part_of_what_the_cores_found_have(tmp_path):
    config = config_of(tmp_path, micro_batch_size=3, train_batch_size=24)
    assert find_cores(config)[0].training.micro_batch_size == 3
    message = "^--micro_batch_size=3: must divide --train_batch_size=8, or not be less"
    with pytest.raises(FlagError, match=message):
        find_cores(config_of(tmp_path, micro_batch_size=3))


@pytest.mark.parametrize(("cores", "size"), [(None, 8), (8, 8), (16, 16), (5, 10)])
def test_one_core_stands_in_for_those_asked_for(tmp_path, cores, size):
    config = config_of(tmp_path, num_tpu_cores=cores)
    found, master = find_cores(config)
    assert (found, master) == (flags.changed(config, eval_batch_size=size), "")


@pytest.mark.usefixtures("xla_runtime")
def test_batches_that_no_flag_gives_fit_the_cores(tmp_path):
    config = config_of(tmp_path, tpu_name="rehearse:3", train_batch_size=9)
    found, master = find_cores(config)
    assert (found, master) == (flags.changed(config, eval_batch_size=9), "rehearse:3")


@pytest.mark.usefixtures("xla_runtime")
def test_a_tensorflow_too_old_for_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.18.1")
    with pytest.raises(FlagError, match=r"^--tpu_name=rehearse:2: The XLA runtime needs Tens"):
        find_cores(config_of(tmp_path, tpu_name="rehearse:2"))


@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tpu_name": "rehearse:2", "predict_batch_size": 5},
            "--predict_batch_size=5: must be a multiple of the 2 cores of --tpu_name=rehearse:2",
        ),
        (
            {"tpu_name": "rehearse:2", "num_tpu_cores": 4},
            "--num_tpu_cores=4: there are the 2 cores of --tpu_name=rehearse:2; leave the flag",
        ),
    ],
)
def test_cores_that_do_not_fit(tmp_path, changes, message):
    with pytest.raises(FlagError) as caught:
        find_cores(config_of(tmp_path, **changes))
    assert str(caught.value).startswith(message)


def test_a_network_that_cores_do_not_divide(tmp_path):
    bert_config = BertConfig(vocab_size=45, hidden_size=6, num_attention_heads=2)
    config = config_of(tmp_path, num_cores_per_replica=4)
    with pytest.raises(FlagError, match="replica=4: must divide the network's hidden_size, which"):
        job_estimator.check_sizes(config, bert_config)
    job_estimator.check_sizes(config_of(tmp_path, num_cores_per_replica=2), bert_config)


@pytest.mark.parametrize(("model", "act"), [("tf1", "gelu"), ("hf_pretraining", "gelu_erf")])
def test_a_network_of_either_format_is_read(model, act):
    name = "bert_config.json" if model == "tf1" else "config.json"
    path = pathlib.Path(__file__).parent.parent / "interchange" / "data" / model / name
    bert_config = NetworkFlags(bert_config_file=str(path)).build("run")
    values = json.loads(path.read_text())
    assert bert_config.hidden_act == act
    assert bert_config.hidden_size == values["hidden_size"] != BertConfig(1).hidden_size


def test_a_network_of_transformers_that_cannot_be_built_is_an_error_of_the_flag(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "roberta"}')
    message = f"^--bert_config_file: {path}: model_type='roberta', but the network supports 'bert'"
    with pytest.raises(FlagError, match=message):
        NetworkFlags(bert_config_file=str(path)).build("run")


LARGE = BertConfig.preset("large", 30522)


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({}, 9, 12),  # LAMB: four copies of 1.25 GiB of weights, and a checkpoint
        ({"optimizer": "adafactor"}, 3, 6),
        ({"do_train": False, "do_eval": True}, 1.5, 2.5),
        ({"train_batch_size": 512, "max_seq_length": 128}, 130, 160),
        ({"train_batch_size": 512, "max_seq_length": 128, "micro_batch_size": 8}, 9, 14),
        ({"train_batch_size": 512, "max_seq_length": 128, "recompute": True}, 15, 30),
        ({"tpu_name": "rehearse:4"}, 30, 45),
        ({"tpu_name": "rehearse:4", "num_cores_per_replica": 4}, 14, 25),
        ({"tpu_name": "local", "train_batch_size": 512}, 9, 12),  # activations are on the TPU
        ({"do_eval": True, "eval_batch_size": 4096, "max_seq_length": 512}, 150, 250),
    ],
)
def test_a_run_says_how_much_memory_it_needs(tmp_path, monkeypatch, capsys, changes, least, most):
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1 << 40)
    config = config_of(tmp_path, **{"optimizer": "lamb", **changes})
    job_estimator.check_memory(config, LARGE)
    printed = capsys.readouterr()
    assert printed.err == ""
    (line,) = printed.out.splitlines()
    said = re.fullmatch(
        r"Memory: about ([\d.]+) GiB of this machine's 1024.0 GiB of memory\.", line
    )
    assert least < float(said[1]) < most


def test_a_packed_batch_is_refused_only_if_a_row_of_it_is_too_large(tmp_path, monkeypatch, capsys):
    large = {"optimizer": "lamb", "train_batch_size": 512, "max_seq_length": 128}
    monkeypatch.setattr(memory, "machine_bytes", lambda: 16 << 30)
    with pytest.raises(FlagError, match=r"^--train_batch_size=512: needs about 1"):
        job_estimator.check_memory(config_of(tmp_path, **large), LARGE)
    config = config_of(tmp_path, **large, predict_batch_size=8)
    assert config.data.pack  # as fine-tunings do by default
    job_estimator.check_memory(config, LARGE)
    printed = capsys.readouterr()
    assert printed.out.startswith("Memory: at most about 1")
    assert printed.err.startswith("Warning: --train_batch_size=512: needs at most about 1")
    monkeypatch.setattr(memory, "machine_bytes", lambda: 5 << 30)
    with pytest.raises(FlagError, match=r"^--train_batch_size=512: needs at most about 1"):
        job_estimator.check_memory(config, LARGE)


MOMENTS = [
    ({"optimizer": "lamb"}, 2.0),
    ({"optimizer": "lamb", "bfloat16_first_moments": True}, 1.5),
    ({"optimizer": "adamw"}, 2.0),
    ({"optimizer": "adamw", "bfloat16_first_moments": True}, 1.5),
    ({"optimizer": "lars"}, 1.0),
    ({"optimizer": "adafactor"}, 2 / 1024),  # a row and a column for a matrix
]


@pytest.mark.parametrize(("of_training", "moments"), MOMENTS)
def test_what_an_optimizer_keeps_of_each_weight(of_training, moments):
    assert job_estimator.moments_of(ScheduleFlags(**of_training)) == moments


def test_what_all_optimizers_keep_is_known():
    assert {of_training["optimizer"] for of_training, _ in MOMENTS} == set(OPTIMIZER_NAMES)


def test_a_network_that_cannot_fit_the_machine_is_refused(tmp_path, monkeypatch, capsys):
    config = config_of(tmp_path, optimizer="lamb")
    monkeypatch.setattr(memory, "machine_bytes", lambda: 11 << 30)
    job_estimator.check_memory(config, LARGE)
    assert re.fullmatch(
        r"Warning: --train_batch_size=8: needs about [\d.]+ GiB of this machine's 11.0 GiB of "
        r"memory; if it does not fit, take a smaller network than one of 335,141,888 weights, .*"
        r"--micro_batch_size and --recompute save memory, too\.\n",
        capsys.readouterr().err,
    )
    monkeypatch.setattr(memory, "machine_bytes", lambda: 5 << 30)
    with pytest.raises(FlagError, match=r"^--train_batch_size=8: needs about .* 5.0 GiB of memory"):
        job_estimator.check_memory(config, LARGE)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(memory, "machine_bytes", lambda: None)
    job_estimator.check_memory(config, LARGE)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("key", ["intermediate_size", "max_position_embeddings", "vocab_size"])
def test_sizes_that_cannot_be_are_refused_at_once(tmp_path, key):
    network = dataclasses.replace(BertConfig.preset("base", 30522), **{key: 2**31 - 1})
    config = config_of(tmp_path, bert_config_file="b.json")
    with pytest.raises(FlagError, match="GiB of this machine's"):
        job_estimator.check_sizes(config, network)


@pytest.mark.parametrize("said", [None, 0.1, 0.3])
def test_a_run_goes_on_with_the_head_s_dropout_that_it_began_with(tmp_path, said):
    """Runs begun before it was read have 0.1, whatever the network says, and do not say so."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "bert", "vocab_size": 45, "hidden_dropout_prob": 0.3}')
    network, run = NetworkFlags(bert_config_file=str(file)), tmp_path / "run"
    directory = RunDirectory(str(run))
    run.mkdir()
    assert network.build(str(run)).classifier_dropout == 0.3
    keys = network.build(str(run)).to_dict()
    directory.write_network({**keys, "classifier_dropout": said})
    if said is None:
        del keys["classifier_dropout"]
        directory.write_network(keys)
    (run / "model.ckpt-1.index").touch()
    now = network.build(str(run))
    assert now.classifier_dropout == (0.1 if said is None else 0.3)
    facts.check_network(directory, now, do_train=False)
    if said == 0.1:
        with pytest.raises(FlagError, match=r"with classifier_dropout=0.1, not 0.3\. Use that"):
            facts.check_network(directory, now, do_train=True)
    else:
        facts.check_network(directory, now, do_train=True)


def test_a_length_is_compared_before_the_memory_that_it_would_take(tmp_path):
    config = config_of(tmp_path, max_seq_length=1 << 20)
    with pytest.raises(flags.FlagError, match="cannot be more than the network's max_position_em"):
        job_estimator.check_sizes(config, BertConfig(vocab_size=99))
