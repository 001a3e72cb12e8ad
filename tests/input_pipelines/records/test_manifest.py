import dataclasses
import json
import os

import kills
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import MAINS

from bert_estimator.jobs.pretraining import pretraining_config, pretraining_data
from input_pipelines.creation import stages
from input_pipelines.records import manifest as manifests
from input_pipelines.records.record_reader import find_record_files, find_record_sets
from input_pipelines.text.documents import is_held_out

MANIFEST = manifests.Manifest(
    max_seq_length=8,
    max_predictions_per_seq=2,
    vocab_size=50,
    vocab_sha256="00",
    do_lower_case=False,
    num_records=3,
    files=(manifests.RecordFile("a.tfrecord", 3, 90, "11"),),
    token_counts="token_counts.a.tfrecord.npy",
    token_counts_sha256="33",
    corpus={"sha256": "22"},
    creation={"random_seed": 1},
)


def test_round_trip(tmp_path):
    path = str(tmp_path / "manifest.a.tfrecord.json")
    manifests.write_manifest(MANIFEST, path)
    assert manifests.read_manifest(path) == MANIFEST
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.a.tfrecord.json"]


def test_manifests_are_found_for_the_files_that_they_list(tmp_path):
    path = str(tmp_path / "manifest.a.tfrecord.json")
    manifests.write_manifest(MANIFEST, path)
    a, b = str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")
    assert manifests.read_manifests_of([a, b]) == {a: (path, MANIFEST)}
    assert manifests.read_manifests_of([b]) == {}


def test_a_manifest_of_an_earlier_version_names_no_vocabulary(tmp_path):
    fields = dataclasses.asdict(MANIFEST)
    del fields["vocab_file"], fields["strip_accents"]
    (tmp_path / "manifest.a.tfrecord.json").write_text(json.dumps(fields))
    assert manifests.read_manifest(str(tmp_path / "manifest.a.tfrecord.json")) == MANIFEST
    files = [str(tmp_path / "a.tfrecord")]
    assert manifests.find_vocabulary(files) is None
    assert manifests.casings(files) == {(False, None)}
    assert manifests.casings([str(tmp_path / "b.tfrecord")]) == set()


@pytest.mark.parametrize(
    ("creation", "expected"),
    [
        ({}, "mlm_nsp"),
        ({"random_next_sentence": True}, "mlm_nsp"),
        ({"random_next_sentence": False}, "mlm_sop"),
        ({"random_next_sentence": True, "objective": "mlm"}, "mlm"),
    ],
)
def test_what_records_were_made_for(tmp_path, creation, expected):
    path, files = tmp_path / "manifest.a.tfrecord.json", [str(tmp_path / "a.tfrecord")]
    assert manifests.objectives(files) == {None}
    manifests.write_manifest(dataclasses.replace(MANIFEST, creation=creation), str(path))
    assert manifests.objectives(files) == {expected}


@pytest.mark.parametrize("objective", ["nsp", 3])
def test_records_of_an_unknown_objective(tmp_path, objective):
    path, files = tmp_path / "manifest.a.tfrecord.json", [str(tmp_path / "a.tfrecord")]
    made = dataclasses.replace(MANIFEST, creation={"objective": objective})
    manifests.write_manifest(made, str(path))
    with pytest.raises(ValueError, match=r"manifest\.a\.tfrecord\.json: objective"):
        manifests.objectives(files)


@pytest.mark.parametrize("ending", [".txt", ".model"])
def test_the_vocabulary_is_kept_once_and_found(tmp_path, ending):
    data, own = tmp_path / "data", tmp_path / f"own{ending}"
    data.mkdir()
    own.write_bytes(b"words")
    name, sha256 = manifests.keep_vocabulary(str(own), str(data))
    assert name == f"vocab.{sha256}{ending}"
    (data / name).write_bytes(b"cut short")  # as by a program that ended
    assert manifests.keep_vocabulary(str(own), str(data)) == (name, sha256)
    assert [path.name for path in data.iterdir()] == [name]
    assert (data / name).read_bytes() == b"words"
    for record_file in ("a.tfrecord", "b.tfrecord"):
        manifest = dataclasses.replace(
            MANIFEST,
            files=(manifests.RecordFile(record_file, 3, 90, "11"),),
            vocab_file=name,
            vocab_sha256=sha256,
        )
        manifests.write_manifest(manifest, str(data / f"manifest.{record_file}.json"))
    files = [str(data / "a.tfrecord"), str(data / "b.tfrecord")]
    assert manifests.find_vocabulary(files) == str(data / name)
    (data / name).write_bytes(b"others")
    with pytest.raises(ValueError, match=rf"{name}: has changed since the records were made"):
        manifests.find_vocabulary(files)
    (data / name).unlink()
    message = rf"{name}: is missing, but .*manifest.a.tfrecord.json says that the records were"
    with pytest.raises(ValueError, match=message):
        manifests.find_vocabulary(files)


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "manifest.a.json"
    path.write_text('{"format_version": 1, "fi')
    with pytest.raises(ValueError, match=r"is not a complete manifest .*Create the data again"):
        manifests.read_manifest(str(path))


def test_a_path_may_be_spelled_differently(tmp_path):
    """A manifest that is overlooked would leave vocabulary and lengths unchecked."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.tfrecord").write_bytes(b"")
    manifests.write_manifest(MANIFEST, str(folder / "manifest.a.tfrecord.json"))
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "a.tfrecord").symlink_to(folder / "a.tfrecord")
    for name in ("data//a.tfrecord", "data/../data/a.tfrecord", "link/a.tfrecord", "a.tfrecord"):
        path = os.path.join(str(tmp_path), name)
        assert list(manifests.read_manifests_of([path])) == [path], name


FRACTION = 0.25


def test_the_choice_is_a_function_of_the_text():
    documents = [[f"document {number}", "has two sentences"] for number in range(2000)]
    chosen = [is_held_out(document, FRACTION) for document in documents]
    assert np.mean(chosen) == pytest.approx(FRACTION, abs=0.05)
    assert [is_held_out(list(document), FRACTION) for document in documents] == chosen
    smaller = [is_held_out(document, FRACTION / 2) for document in documents]
    assert not any(less and not more for less, more in zip(smaller, chosen, strict=True))
    assert not any(is_held_out(document, 0.0) for document in documents)


def create(folder, vocab_file, *others, masking="static"):
    """Makes two training files and a file of held-out records; returns the exit code."""
    (folder / "text").mkdir(exist_ok=True)
    documents = [f"w{i % 40} w{i // 40} w3\nw4 w{i % 7} w5\n" for i in range(60)]
    (folder / "text" / "a.txt").write_text("\n".join(documents))
    (folder / "data").mkdir(exist_ok=True)
    return MAINS["records"](
        [
            "records",
            f"--input_file={folder}/text",
            f"--output_file={folder}/data/b.tfrecord,{folder}/data/a.tfrecord",
            f"--vocab_file={vocab_file}",
            f"--masking={masking}",
            "--max_seq_length=16",
            "--max_predictions_per_seq=4",
            "--dupe_factor=2",
            f"--eval_fraction={FRACTION}",
            *others,
        ]
    )


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_held_out_records_lie_beside_the_training_records(tmp_path, vocab_file, masking, capsys):
    assert create(tmp_path, vocab_file, masking=masking) == 0
    data = tmp_path / "data"
    summary = capsys.readouterr().out
    training = [str(data / "a.tfrecord"), str(data / "b.tfrecord")]
    path = str(data / "heldout.b.tfrecord")
    assert "Held out: " in summary and f" in {path}.\n" in summary
    # No pattern takes held-out records for training records by accident.
    for pattern in (str(data), f"{data}/", f"{data}/*.tfrecord", f"{data}/*"):
        assert find_record_files(pattern) == training
    assert find_record_files(f"{data}/heldout.*.tfrecord") == [path] == find_record_files(path)
    assert manifests.find_held_out(training) == [path] == manifests.find_held_out(training[:1])
    train, evaluation = (
        manifests.read_manifest(manifests.manifest_path(first))
        for first in (str(data / "b.tfrecord"), path)
    )
    assert train.corpus["documents"] + evaluation.corpus["documents"] == 60
    assert 5 < evaluation.corpus["documents"] < 25
    assert train.is_dynamic == evaluation.is_dynamic == (masking == "dynamic")
    assert evaluation.creation["dupe_factor"] == 1


def test_records_without_held_out_records(record_files):
    assert manifests.find_held_out(record_files) == []


def test_other_held_out_records_are_refused(tmp_path, vocab_file):
    assert create(tmp_path, vocab_file) == 0
    training = [str(tmp_path / "data" / "a.tfrecord")]
    evaluation = tmp_path / "data" / "heldout.b.tfrecord"
    before = evaluation.read_bytes()
    manifest_file = manifests.manifest_path(str(tmp_path / "data" / "b.tfrecord"))
    with open(manifest_file, encoding="utf-8") as file:
        old = file.read()
    assert create(tmp_path, vocab_file, "--random_seed=1") == 0
    assert evaluation.read_bytes() != before
    manifests.find_held_out(training)
    with open(manifest_file, "w", encoding="utf-8") as file:
        file.write(old)  # as if the second creation had been killed before its training records
    with pytest.raises(ValueError, match=r"heldout\.b\.tfrecord: belongs to other training rec"):
        manifests.find_held_out(training)
    os.remove(evaluation)
    os.remove(manifests.manifest_path(str(evaluation)))
    with pytest.raises(ValueError, match=r"heldout\.b\.tfrecord: is missing, but .*\.json names"):
        manifests.find_held_out(training)


def test_sets_that_hold_out_other_documents_are_told(tmp_path, vocab_file, record_files):
    """What one set holds out may be in another, which is trained on."""
    for name, fraction in (("one", 0.25), ("same", 0.25), ("more", 0.5)):
        (tmp_path / name).mkdir()
        assert create(tmp_path / name, vocab_file, f"--eval_fraction={fraction}") == 0
    one, same, more = (
        str(tmp_path / name / "data" / "a.tfrecord") for name in ("one", "same", "more")
    )
    assert manifests.held_out_disagreement(record_files) is None
    assert manifests.held_out_disagreement([one, same, one.replace("a.tf", "b.tf")]) is None
    assert (
        f": {one} was made with --eval_fraction=0.25, {more} was made with --eval_fraction=0.5. "
        in (manifests.held_out_disagreement([more, one, same]))
    )
    nothing = manifests.held_out_disagreement([*record_files, one])
    assert f": {record_files[0]} holds out nothing, {one} was made with" in nothing
    # Records of other programs have no manifest, so their held-out documents are not known.
    foreign = tmp_path / "foreign.tfrecord"
    foreign.write_bytes(b"")
    assert f"{foreign} holds out nothing" in manifests.held_out_disagreement([one, str(foreign)])


@pytest.mark.parametrize("evaluated", [None, "heldout.b.tfrecord"])
def test_pretraining_begins_with_a_warning(tmp_path, vocab_file, caplog, monkeypatch, evaluated):
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    for name, fraction in (("one", 0.25), ("more", 0.5)):
        (tmp_path / name).mkdir()
        assert create(tmp_path / name, vocab_file, f"--eval_fraction={fraction}") == 0
    (tmp_path / "bert_config.json").write_text('{"vocab_size": 50}')
    flags = [
        f"--bert_config_file={tmp_path}/bert_config.json",
        "--max_seq_length=16",
        "--max_predictions_per_seq=4",
        "--do_train",
    ]
    flags.append(f"--input_file={tmp_path}/one/data/*,{tmp_path}/more/data/*")
    if evaluated:  # The user's own choice of records to evaluate on.
        flags.append(f"--eval_input_file={tmp_path}/more/data/{evaluated}")
    (config,) = pretraining_config.resolve(["x", f"--output_dir={tmp_path}/run", *flags])
    pretraining_data.prepare(config, 50, is_new=False)
    warned = "The training records do not hold out the same documents" in caplog.text
    assert warned == (evaluated is None)


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        ("0.9999", "--eval_fraction: the fraction 0.9999 holds out all of the documents. Give le"),
        ("1e-9", "--eval_fraction: the fraction 1e-09 holds out none of the documents. Give mor"),
    ],
)
def test_fractions_that_cannot_work(tmp_path, vocab_file, fraction, message, capsys):
    assert create(tmp_path, vocab_file, f"--eval_fraction={fraction}") == 2
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path / "data") == []


def test_only_the_fractions_own_errors_name_it(tmp_path, vocab_file, capsys):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"w1 w2\n\nw1 \xff\n")
    assert create(tmp_path, vocab_file, f"--input_file={bad}") == 2
    assert f"create_pretraining_data: {bad}: byte 10 is not UTF-8" in capsys.readouterr().err


def test_the_held_out_work_of_another_creation_is_removed(tmp_path, vocab_file, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, stages, "write_piece", lambda *_: True)
        create(tmp_path, vocab_file)
    assert os.listdir(tmp_path / "data") == [".heldout.b.tfrecord.work"]
    assert create(tmp_path, vocab_file, "--eval_fraction=0") == 0
    assert not [name for name in os.listdir(tmp_path / "data") if name.endswith(".work")]


def test_frequencies_are_of_all_training_text(tmp_path, vocab_file):
    assert create(tmp_path, vocab_file) == 0
    data = tmp_path / "data"
    counts = manifests.read_token_counts(manifests.token_counts_path(str(data / "b.tfrecord")))
    both = find_record_sets(str(data))
    np.testing.assert_allclose(manifests.token_frequencies(both), counts)
    # Two sets with weights: each has its share, whatever the lengths of their texts are.
    (tmp_path / "more").mkdir()
    assert create(tmp_path / "more", vocab_file, f"--eval_fraction={FRACTION / 2}") == 0
    more = tmp_path / "more" / "data"
    other = manifests.read_token_counts(manifests.token_counts_path(str(more / "b.tfrecord")))
    mixed = manifests.token_frequencies(
        find_record_sets(f"{data}/*.tfrecord:3,{more}/*.tfrecord:1")
    )
    share = 0.75 * counts / counts.sum() + 0.25 * other / other.sum()
    np.testing.assert_allclose(mixed / mixed.sum(), share)
    one_after_the_other = manifests.token_frequencies(find_record_sets(f"{data},{more}"))
    np.testing.assert_allclose(one_after_the_other, counts + other)


def test_frequencies_that_are_not_known(tmp_path, vocab_file, caplog):
    assert create(tmp_path, vocab_file) == 0
    path = manifests.token_counts_path(str(tmp_path / "data" / "b.tfrecord"))
    sets = find_record_sets(str(tmp_path / "data"))
    with open(path, "ab") as file:
        file.write(b"0")
    with pytest.raises(ValueError, match=r"token_counts\.b\.tfrecord\.npy: has changed since"):
        manifests.token_frequencies(sets)
    os.remove(path)
    assert manifests.token_frequencies(sets) is None
    assert f"{path} is missing" in caplog.text
    os.remove(manifests.manifest_path(str(tmp_path / "data" / "b.tfrecord")))
    assert manifests.token_frequencies(sets) is None


def test_the_cross_entropy_of_each_id_by_hand():
    # With one added to each count the probabilities are 1/10, 5/10, 3/10 and 1/10.
    found = manifests.unigram_nats(np.array([0, 4, 2, 0]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, -np.log([0.1, 0.5, 0.3, 0.1]), rtol=1e-6)
