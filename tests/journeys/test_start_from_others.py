"""Pretraining goes on from a network of any format, with its vocabulary and its settings."""

import dataclasses
import json
import shutil
import zipfile

import fixtures
import numpy as np
import pytest
from commands import MAINS
from scripts import CLASSIFIER, PRETRAINING, write_data
from tiny_run import copy_records, go_back, pretraining_flags, variables_of

from bert_estimator.interchange import Source, network_variables, open_source
from bert_estimator.interchange.network_variables import MASKED_LM, NEXT_SENTENCE
from bert_estimator.interchange.weights import fixed_batch, logits_of
from bert_estimator.tokenization import FullTokenizer

RATES_OF_NOTHING = {"learning_rate": 1e-30, "num_warmup_steps": 0, "num_train_steps": 1}


def trained(script, tmp_path_factory, **changes):
    data, run = write_data(tmp_path_factory)[script.name], tmp_path_factory.mktemp("run") / "run"
    assert (
        script.module.main([script.name, *script.flags(data, run, do_train=True, **changes)]) == 0
    )
    return run


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Returns name -> function of a directory that gives the path of a network."""

    def tokenizer_alone(path):
        folder = fixtures.changed(path, "hf_encoder")
        fixtures.with_tokenizer_json(folder, normalizer={"lowercase": False})
        (folder / "vocab.txt").unlink()
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder

    def of_sentences(path):
        folder = fixtures.changed(path, "hf_encoder")
        steps = [("", "models.Transformer"), ("1_Pooling", "models.Pooling")]
        modules = [
            {"path": place, "type": f"sentence_transformers.{name}"} for place, name in steps
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        return folder

    def archive(path):
        with zipfile.ZipFile(path / "model.zip", "w") as writer:
            for file in (fixtures.TF1).iterdir():
                writer.write(file, f"model/{file.name}")
        return path / "model.zip"

    # What is new is said once for a path in a process: each test has a path of its own.
    return {
        **{name: lambda p, n=name: fixtures.changed(p, n) for name in fixtures.HUGGING_FACE},
        "other layer norm": lambda p: fixtures.changed(p, "hf_masked_lm", layer_norm_eps=1e-3),
        "other activation": lambda p: fixtures.changed(p, "hf_masked_lm", hidden_act="silu"),
        "tokenizer.json alone": tokenizer_alone,
        "sentence-transformers": of_sentences,
        "tf1": lambda p: shutil.copytree(fixtures.TF1, p / "tf1") / "bert_model.ckpt",
        "zip": archive,
        "run": lambda _: trained(PRETRAINING, tmp_path_factory),
        "run of a classifier": lambda _: trained(CLASSIFIER, tmp_path_factory),
    }


QUICK = ("hf_masked_lm", "hf_encoder", "hf_classifier", "other activation", "tf1")
SLOW = (
    *("hf_pretraining", "hf_albert", "hf_electra", "other layer norm", "tokenizer.json alone"),
    *("sentence-transformers", "zip", "run", "run of a classifier"),
)
STARTS = (*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW))


def make_records(start, folder, *flags):
    """Makes records of the words that the vocabulary of a network has."""
    words = [t for t in FullTokenizer(open_source(str(start)).vocab_file).vocab if t.isalnum()]
    sentences = (" ".join(words[(7 * s + w) % len(words)] for w in range(5)) for s in range(40))
    (folder / "text.txt").write_text("\n".join(sentences))
    made = [f"--input_file={folder}/text.txt", f"--output_file={folder}/train.tfrecord"]
    made += [f"--vocab_file={start}", "--max_seq_length=16", "--max_predictions_per_seq=4", *flags]
    assert MAINS["records"](["records", *made]) == 0


def pretrain(start, folder, run, **changes):
    values = {"bert_config_file": None, "init_checkpoint": start, "do_train": True, **changes}
    return PRETRAINING.module.main(["", *pretraining_flags(folder, run, **values)])


@pytest.mark.parametrize("name", STARTS)
def test_a_run_begins_with_the_weights_and_the_settings_of_its_start(
    tmp_path, starts, logged, name
):
    start = starts[name](tmp_path)
    make_records(start, tmp_path)
    assert pretrain(start, tmp_path, tmp_path / "new", **RATES_OF_NOTHING) == 0
    source, run = open_source(str(start)), open_source(str(tmp_path / "new"))
    assert run.config == source.config
    tokenizers = [FullTokenizer(s.vocab_file) for s in (source, run)]
    assert tokenizers[0].vocab == tokenizers[1].vocab
    if source.casing is not None:
        assert run.casing == source.casing
    # All that the objective needs is there: what the source has, and the rest anew.
    heads = network_variables.head_shapes(source.config, 0)
    needed = {**network_variables.encoder_shapes(source.config), **heads[MASKED_LM]}
    needed |= heads[NEXT_SENTENCE]
    assert run.shapes == needed
    for weight in needed.keys() & source.shapes.keys():
        # A weight of 0, such as the bias of a unit that is off, may be moved by so small a rate.
        np.testing.assert_allclose(run.read(weight), source.read(weight), 0, 1e-25, err_msg=weight)
    said = [text for _, text in logged if "what it lacks starts from new weights" in text]
    heads = {"masked-word head": MASKED_LM, "next-sentence head": NEXT_SENTENCE}
    new = [what for what, head in heads.items() if not any(map(in_(head), source.shapes))]
    assert len(said) == bool(new)
    assert [what for what in heads if what in "".join(said).partition(":")[0]] == new
    is_tied = "the masked-word head's output weights, which are the word embeddings" in str(said)
    assert is_tied == ("masked-word head" in new)


def in_(scope):
    return lambda name: name.startswith(scope)


def test_records_of_google_are_of_the_vocabulary_of_the_start(tmp_path):
    """Nothing beside such records says which vocabulary made them."""
    start = fixtures.changed(tmp_path, "hf_masked_lm")
    (start / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    make_records(start, tmp_path, "--masking=static")
    (tmp_path / "theirs").mkdir()
    copy_records(tmp_path / "train.tfrecord", tmp_path / "theirs" / "train.tfrecord", {})
    assert pretrain(start, tmp_path / "theirs", tmp_path / "new", **RATES_OF_NOTHING) == 0
    assert (tmp_path / "new/vocab.txt").read_bytes() == (start / "vocab.txt").read_bytes()
    task = json.loads((tmp_path / "new/task.json").read_text())
    assert (task["do_lower_case"], task["strip_accents"]) == (False, None)


def test_records_take_the_casing_of_a_network_unless_a_flag_says_another(tmp_path, capsys):
    start = fixtures.changed(tmp_path, "hf_encoder")
    (start / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    for flags, expected in (((), False), (("--do_lower_case",), True)):
        make_records(start, tmp_path, *flags)
        manifest = json.loads((tmp_path / "manifest.train.tfrecord.json").read_text())
        assert manifest["do_lower_case"] is expected
    assert pretrain(start, tmp_path, tmp_path / "new") == 2
    assert "was trained with False for --do_lower_case, not True" in capsys.readouterr().err
    (start / "vocab.txt").unlink()
    flags = [f"--input_file={tmp_path}/text.txt", f"--output_file={tmp_path}/a.tfrecord"]
    assert MAINS["records"](["records", *flags, f"--vocab_file={start}"]) == 2
    said = capsys.readouterr().err
    assert f"--vocab_file={start}: there is no vocabulary beside this network" in said


WAYS = {
    "session": {"use_tpu": False, "optimizer": "lars"},
    "cores": {"tpu_name": "rehearse:2", "precision": "bfloat16", "optimizer": "lamb"},
    "packed": {"pack": True, "micro_batch_size": 4, "optimizer": "adamw"},
    "recomputed": {"recompute": True, "optimizer": "adafactor"},
}


@pytest.mark.usefixtures("ways_on_cores")
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way != "session")) for way in WAYS]
)
def test_layers_learn_by_their_depth_and_a_run_resumes(tmp_path, way):
    start = fixtures.changed(tmp_path, "hf_masked_lm", layer_norm_eps=1e-5, hidden_act="mish")
    make_records(start, tmp_path)
    flags = {"num_train_steps": 4, "num_warmup_steps": 0, "save_checkpoints_steps": 2}
    flags = {**flags, "layerwise_lr_decay": 0.1, **WAYS[way]}
    assert pretrain(start, tmp_path, tmp_path / "run", **flags) == 0
    source, after = open_source(str(start)), variables_of(tmp_path / "run", 4)
    moved = [
        np.abs(after[f"{scope}/kernel"] - source.read(f"{scope}/kernel")).mean()
        for scope in (
            "bert/encoder/layer_0/output/dense",
            "bert/encoder/layer_1/output/dense",
            "cls/predictions/transform/dense",
        )
    ]
    assert 0 < moved[0] < 0.4 * moved[1] < 0.4 * 0.4 * moved[2]
    resumed = shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    go_back(resumed)
    assert pretrain(start, tmp_path, resumed, **flags) == 0
    np.testing.assert_equal(variables_of(resumed, 4), after)


def test_a_run_goes_back_to_the_format_of_its_start(tmp_path):
    """The run of a foreign network is written for transformers with its settings."""
    start = fixtures.changed(tmp_path, "hf_encoder", layer_norm_eps=1e-5, hidden_act="silu")
    make_records(start, tmp_path)
    assert pretrain(start, tmp_path, tmp_path / "run", **RATES_OF_NOTHING) == 0
    convert = ["interchange", str(tmp_path / "run"), str(tmp_path / "back")]
    assert MAINS["convert"](convert) == 0
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["layer_norm_eps"], config["hidden_act"]) == (1e-5, "silu")
    assert config["architectures"] == ["BertForPreTraining"]
    back, source = open_source(str(tmp_path / "back")), open_source(str(start))
    for name in source.shapes:
        np.testing.assert_array_equal(back.read(name), source.read(name), name)


@fixtures.needs_transformers
@pytest.mark.parametrize(
    "hidden_act", ["gelu", "silu", "quick_gelu", "mish", "relu6", "leaky_relu"]
)
def test_transformers_computes_the_same(tmp_path, hidden_act):
    changes = {"hidden_act": hidden_act, "layer_norm_eps": 1e-2}
    vocab_file = fixtures.DATA / "hf_pretraining" / "vocab.txt"
    config = dataclasses.replace(
        open_source(str(fixtures.DATA / "hf_pretraining")).config, **changes
    )
    weights = fixtures.random_weights(config, (MASKED_LM, NEXT_SENTENCE))
    shapes = {name: list(value.shape) for name, value in weights.items()}
    source = Source("here", "tf1", shapes, weights.get, config=config)
    source = dataclasses.replace(source, vocab_file=str(vocab_file))
    fixtures.write_hugging_face(tmp_path, source, weights)
    batch = fixed_batch(config)
    np.savez(tmp_path / "batch.npz", **batch)
    fixtures.transformers("logits", tmp_path, tmp_path / "batch.npz", tmp_path / "logits.npz")
    ours = logits_of(config, weights, batch)
    with np.load(tmp_path / "logits.npz") as theirs:
        assert {"masked_lm_logits", "next_sentence_logits"} <= set(theirs)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-5, err_msg=name)
