"""Pretrainings whose rows are packed equal pretrainings whose rows are not, and on any cores."""

import json

import numpy as np
import pytest
import scripts
from scripts import PRETRAINING
from tiny_run import bert_config, copy_records, go_back, variables_of, words

from bert_estimator.jobs.pretraining.pretraining_config import resolve
from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings

LENGTH = 32
WAYS = {
    **scripts.WAYS,
    "a model on 2 cores": {
        "use_tpu": True, "tpu_name": "rehearse:4", "num_cores_per_replica": 2
    },
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("ways_on_cores")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a directory with records of many lengths: dynamic, static, without a manifest, and
    without masks for spans of the words of a segmenter."""
    path = tmp_path_factory.mktemp("data")
    vocabulary, generator = words(40), np.random.default_rng(3)
    write_vocab([*SPECIAL_TOKENS, *vocabulary], str(path / "vocab.txt"))
    documents = [
        [" ".join(generator.choice(vocabulary, generator.integers(2, 9))) for _ in range(4)]
        for _ in range(30)
    ]
    words_of_pairs = {"masking_unit": "span", "word_segmenter": "word_cutters:in_pairs"}
    for kind, unit in (("dynamic", {}), ("static", {}), ("spans", words_of_pairs)):
        (path / kind).mkdir()
        write_pretraining_records(
            documents,
            FullTokenizer(str(path / "vocab.txt")),
            str(path / "vocab.txt"),
            [str(path / kind / f"train-{number}.tfrecord") for number in range(2)],
            CreationSettings(
                max_seq_length=LENGTH,
                max_predictions_per_seq=6,
                short_seq_prob=0.5,
                dupe_factor=10,
                **unit,
            ),
            masking="static" if kind == "static" else "dynamic",
        )
    (path / "foreign").mkdir()
    for number in range(2):
        name = f"train-{number}.tfrecord"
        copy_records(path / "static" / name, path / "foreign" / name, {})
    return path


def trained(data, folder, kind="dynamic", rate=0.0, **changes):
    """Trains 5 steps and evaluates; returns the weights, and losses and accuracies by step."""
    folder.mkdir(exist_ok=True)
    config = bert_config(40, max_position_embeddings=LENGTH)
    config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = rate
    (folder.parent / "network.json").write_text(json.dumps(config))
    # LAMB would make much of rounding in weights whose gradient is nearly 0.
    own = {"optimizer": "lars", "learning_rate": 0.05, "num_train_steps": 5, "do_train": True}
    own |= {"input_file": f"{data / kind}/*", "bert_config_file": folder.parent / "network.json"}
    own |= {"max_seq_length": LENGTH, "max_predictions_per_seq": 6, "do_eval": True}
    own |= {"save_checkpoints_steps": 2}
    assert PRETRAINING.main(PRETRAINING.flags(data, folder, **(own | changes))) == 0
    weights = variables_of(folder, 5)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return weights, {
        (line["step"], "loss" in line): {
            name: value for name, value in line.items() if "loss" in name or "accuracy" in name
        }
        for line in lines
    }


def assert_equal(one, other):
    for name, value in other[0].items():
        np.testing.assert_allclose(one[0][name], value, atol=1e-5, err_msg=name)
    common = one[1].keys() & other[1].keys()  # by the rules of TPUs, loops have two steps
    assert len(common) >= 4
    for step in common:
        assert one[1][step] == pytest.approx(other[1][step], abs=1e-5)


@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(k, marks=pytest.mark.slow) for k in ("dynamic", "static")), "foreign", "spans"],
)
def test_packed_rows_give_what_rows_of_one_sequence_give(kind, data, tmp_path, capsys):
    unpacked = trained(data, tmp_path / "unpacked", kind)
    packed = trained(data, tmp_path / "packed", kind, use_tpu=False, pack=True)
    assert_equal(packed, unpacked)
    assert capsys.readouterr().out.count("Packed: sequences share rows of 32 tokens") == 1
    kept = tmp_path / "packed" / "record_lengths.npz"
    assert kept.exists() == (kind == "foreign")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_dropout_of_packed_rows_is_the_same_on_any_cores(way, data, tmp_path):
    expected = trained(data, tmp_path / "expected", rate=0.2, pack=True)
    assert_equal(trained(data, tmp_path / "other", rate=0.2, pack=True, **WAYS[way]), expected)


@pytest.mark.parametrize(
    ("flags", "packed"),
    [
        ([], [(0.5, False, True), (0.95, False, False), (None, False, False)]),
        (["--pack"], [(0.95, True, True)]),
        (["--nopack"], [(0.5, False, False)]),
        (["--max_seq_length=256"], [(0.5, False, False)]),
    ],
)
def test_long_rows_of_recipes_that_are_not_full_are_packed(flags, packed, tmp_path):
    stages = resolve(["", "--recipe=lamb_76min", f"--output_dir={tmp_path}", *flags])
    for token_share, *expected in packed:
        assert [stage.packed(token_share).data.pack for stage in stages] == expected


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_packed_rows_give_what_rows_of_one_sequence_give_on_any_cores(way, data, tmp_path):
    unpacked = trained(data, tmp_path / "unpacked", "foreign")
    assert_equal(trained(data, tmp_path / "packed", "foreign", pack=True, **WAYS[way]), unpacked)


@pytest.mark.parametrize(
    "kind", ["foreign", *(pytest.param(k, marks=pytest.mark.slow) for k in ("dynamic", "spans"))]
)
def test_a_killed_run_goes_on_as_it_would_have_gone_on(kind, data, tmp_path):
    expected = trained(data, tmp_path / "run", kind, rate=0.2, pack=True)
    go_back(tmp_path / "run")
    found = trained(data, tmp_path / "run", kind, rate=0.2)  # packed, as it began
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize(
    "way", [pytest.param("2 cores", marks=pytest.mark.slow), "micro-batches without TPU rules"]
)
def test_spans_of_words_are_the_same_wherever_they_are_drawn(way, data, tmp_path):
    expected = trained(data, tmp_path / "expected", "spans", pack=False)
    assert_equal(trained(data, tmp_path / "other", "spans", pack=False, **WAYS[way]), expected)
