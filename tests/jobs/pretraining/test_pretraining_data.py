"""Which records, objective and vocabulary a run has, before anything is trained."""

import json
import shutil

import fixtures
import pytest
from tiny_run import bert_config, copy_records, words, write_records

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs.pretraining import pretraining_data
from bert_estimator.jobs.pretraining.pretraining_config import resolve
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines.records import manifest as manifests

OBJECTIVES = ("mlm", "mlm_nsp", "mlm_sop")
WORDS = words(40)
TOKENS = len(WORDS) + len(SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a directory of records with masks: a directory of each objective, and `foreign` ones
    without a manifest."""
    path = tmp_path_factory.mktemp("data")
    write_vocab([*SPECIAL_TOKENS, *WORDS], str(path / "vocab.txt"))
    for objective in OBJECTIVES:
        (path / objective).mkdir()
        write_records(path / objective, "x.tfrecord", WORDS, objective=objective)
    (path / "foreign").mkdir()
    copy_records(path / "mlm_nsp/x.tfrecord", path / "foreign/x.tfrecord", {})
    (path / "bert_config.json").write_text(json.dumps(bert_config(len(WORDS))))
    return path


def prepared(data, output_dir, kinds, *flags, vocab_size=TOKENS, is_new=True):
    files = ",".join(str(data / kind / "x.tfrecord") for kind in kinds.split(","))
    flags = [f"--input_file={files}", f"--output_dir={output_dir}", *flags]
    flags += ["--max_seq_length=16", "--max_predictions_per_seq=4"]
    if not any(flag.startswith("--init_checkpoint") for flag in flags):
        flags.append(f"--bert_config_file={data}/bert_config.json")
    (config,) = resolve(["run_pretraining.py", *flags])
    return pretraining_data.prepare(config, vocab_size, is_new=is_new)


def evaluated_on(data, kind):
    return f"--eval_input_file={data}/{kind}/x.tfrecord"


@pytest.mark.parametrize(
    ("kinds", "evaluated", "asked", "objective"),
    [
        ("foreign", None, None, "mlm_nsp"),
        ("foreign,mlm_nsp", None, None, "mlm_nsp"),
        ("foreign", "mlm_nsp", None, "mlm_nsp"),
        ("mlm_nsp", "foreign", None, "mlm_nsp"),
        ("foreign,mlm_sop", None, "mlm_sop", "mlm_sop"),
        ("mlm_sop", "foreign", "mlm_sop", "mlm_sop"),
        ("foreign,mlm", None, "mlm", "mlm"),
        ("mlm", "foreign", None, "mlm"),  # any records do
        ("foreign", "mlm_sop", "mlm", "mlm"),
    ],
)
def test_records_without_a_manifest_are_for_next_sentence_unless_asked(
    data, tmp_path, kinds, evaluated, asked, objective
):
    flags = [f"--objective={asked}"] if asked else []
    flags += [evaluated_on(data, evaluated)] if evaluated else []
    assert prepared(data, tmp_path, kinds, *flags).objective == objective


@pytest.mark.parametrize(
    ("kinds", "evaluated", "message"),
    [
        ("foreign,mlm_sop", None, "--objective: the records of --input_file were made for mlm_nsp "
         r"and mlm_sop \(files without a manifest for mlm_nsp, unless --objective says otherwise\)"
         "; give --objective=mlm, for which"),
        ("foreign,mlm", None, "--input_file were made for mlm and mlm_nsp "),
        ("mlm_sop", "foreign", "--objective=mlm_sop: the records of --eval_input_file were made for"
         r" mlm_nsp \(files without"),
        ("foreign", "mlm_sop", "=mlm_nsp: the records of --eval_input_file were made for mlm_sop;"),
    ],
)  # fmt: skip
def test_they_are_not_taken_for_what_other_records_were_made_for(
    data, tmp_path, kinds, evaluated, message
):
    flags = [evaluated_on(data, evaluated)] if evaluated else []
    with pytest.raises(FlagError, match=message):
        prepared(data, tmp_path, kinds, *flags)


def of_another_vocabulary(data, folder, kind, keeps_vocabulary):
    """Copies records of a kind whose manifest names another vocabulary than `vocab.txt`."""
    copy = shutil.copytree(data / kind, folder / kind)
    path = copy / "manifest.x.tfrecord.json"
    other, made = str(folder / "other.txt"), json.loads(path.read_text())
    write_vocab([*SPECIAL_TOKENS, *WORDS[::-1]], other)
    name, sha256 = manifests.keep_vocabulary(other, str(copy))
    made |= {"vocab_sha256": sha256, "vocab_file": name if keeps_vocabulary else None}
    path.write_text(json.dumps(made))
    shutil.copytree(data / "foreign", folder / "foreign")
    shutil.copy(data / "bert_config.json", folder)
    return folder


@pytest.fixture
def start(data, tmp_path):
    """Returns the directory of a checkpoint of which only names are read, with a vocabulary."""
    folder = tmp_path / "start"
    folder.mkdir()
    config = BertConfig(**bert_config(len(WORDS)))
    weights = fixtures.random_weights(config)
    fixtures.write_tf1(folder, config, weights, vocab_file=str(data / "vocab.txt"))
    return folder


@pytest.mark.parametrize("verb", ["--do_train", "--do_eval"])
@pytest.mark.parametrize("kinds", ["mlm", "foreign"])
def test_the_vocabulary_of_the_start_is_not_taken_for_another_one(
    data, tmp_path, start, kinds, verb
):
    """The manifests of earlier versions know the vocabulary's checksum, but do not keep it."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    of_another_vocabulary(data, folder, "mlm", keeps_vocabulary=False)
    flags = [f"--init_checkpoint={start}", verb, "--objective=mlm", evaluated_on(folder, "mlm")]
    message = "^--init_checkpoint=.*: has another vocabulary than the records; name theirs with --v"
    with pytest.raises(FlagError, match=message):
        prepared(folder, tmp_path / "run", kinds, *flags)
    own = f"--vocab_file={folder}/other.txt"
    made = prepared(folder, tmp_path / "run", kinds, *flags, own)
    assert made.vocab_file == f"{folder}/other.txt"
    path = folder / "mlm" / "manifest.x.tfrecord.json"
    known = manifests.sha256_of_file(str(start / "vocab.txt"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_sha256": known}))
    made = prepared(folder, tmp_path / "run", kinds, *flags)
    assert (made.vocab_file, made.vocab_sha256) == (f"{start}/vocab.txt", known)


def test_the_records_of_an_evaluation_say_the_vocabulary_too(data, tmp_path):
    """The training may read google-research/bert's records."""
    folder = of_another_vocabulary(data, tmp_path, "mlm_nsp", keeps_vocabulary=True)
    flags = ["--do_train", "--do_eval", evaluated_on(folder, "mlm_nsp")]
    made = prepared(folder, tmp_path / "run", "foreign", *flags)
    other = str(folder / "other.txt")
    assert made.vocab_sha256 == manifests.sha256_of_file(made.vocab_file)
    assert made.vocab_sha256 == manifests.sha256_of_file(other) and made.casing is not None
    with pytest.raises(FlagError, match="is not the vocabulary that the records were made with"):
        prepared(folder, tmp_path / "run", "foreign", *flags, f"--vocab_file={data}/vocab.txt")


def test_a_network_from_scratch_may_have_rows_of_padding_alone(data, tmp_path, start, capfd):
    """The rows of a start, or of a run, are as they are: its vocabulary is compared."""
    train = "--do_train"
    made = prepared(data, tmp_path / "run", "mlm_nsp", train, vocab_size=TOKENS + 127)
    assert made.vocab_sha256 is not None
    said = f"has {TOKENS} tokens, so that 127 of the network's {TOKENS + 127} rows of embeddings"
    assert said in capfd.readouterr().err
    message = (
        f"bert_config.json: the network's vocab_size is {TOKENS + 128}, but the records have "
        f"{TOKENS} tokens, as .*manifest.x.tfrecord.json says. Give a file with that number, or at "
        "most 127 more"
    )
    with pytest.raises(FlagError, match=message):
        prepared(data, tmp_path / "run", "mlm_nsp", train, vocab_size=TOKENS + 128)
    with pytest.raises(FlagError, match=r"^--input_file: .*: vocab_size is 45, as .*but 44 was"):
        prepared(data, tmp_path / "run", "mlm_nsp", train, vocab_size=TOKENS - 1)
    many = {"vocab_size": TOKENS + 9000}
    prepared(data, tmp_path / "run", "mlm_nsp", train, is_new=False, **many)
    prepared(data, tmp_path / "run", "mlm_nsp", train, f"--init_checkpoint={start}", **many)
