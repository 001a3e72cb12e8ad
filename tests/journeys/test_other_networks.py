"""The scripts told to go on with, to evaluate, or to start from what belongs to another network."""

import contextlib
import json
import shutil

import fixtures
import pytest
from scripts import CLASSIFIER, PRETRAINING, write_data
from tiny_run import words, write_records

import run_classifier
from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs.fine_tuning import classification_config
from bert_estimator.jobs.pretraining.pretraining_data import PretrainingData, check_stages
from bert_estimator.tokenization import SPECIAL_TOKENS, Casing, write_vocab

SCRIPTS = pytest.mark.parametrize("script", [PRETRAINING, CLASSIFIER], ids=lambda s: s.name)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Returns the directories of finished runs by the names of their scripts."""
    folders = {}
    for script in (PRETRAINING, CLASSIFIER):
        folders[script.name] = tmp_path_factory.mktemp("trained") / "run"
        flags = script.flags(data[script.name], folders[script.name], do_train=True)
        assert script.module.main([script.name, *flags]) == 0
    return folders


def refused(script, path, output_dir, capsys, **changes):
    """Returns the message of exit code 2."""
    flags = script.flags(path, output_dir, **changes)
    assert script.module.main([script.name, *flags]) == 2
    return capsys.readouterr().err


@contextlib.contextmanager
def changed(path, change):
    """Changes the object in a JSON file for a while."""
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), **change}))
    yield
    path.write_text(before)


@SCRIPTS
@pytest.mark.parametrize("to_do", [{"do_train": True}, {"do_train": False, "do_eval": True}])
@pytest.mark.parametrize(
    ("change", "was"),
    [
        ({"num_hidden_groups": 1}, "num_hidden_groups=None, not 1"),
        ({"embedding_size": 8}, "embedding_size=None, not 8"),
        ({"num_attention_heads": 4}, "num_attention_heads=2, not 4"),
        ({"hidden_act": "gelu"}, "hidden_act='relu', not 'gelu'"),
    ],
    ids=lambda value: value.split("=")[0] if isinstance(value, str) else "",
)
def test_a_run_keeps_its_network(data, trained, capsys, script, to_do, change, was):
    path, run = data[script.name], trained[script.name]
    before = (run / "bert_config.json").read_bytes()
    with changed(path / "bert_config.json", change):
        message = refused(script, path, run, capsys, **to_do)
    assert f"--bert_config_file: {run} holds a run of a network with {was}." in message
    assert (run / "bert_config.json").read_bytes() == before


@pytest.mark.parametrize("verb", ["do_eval", "do_predict", "do_export"])
def test_a_network_from_elsewhere_is_the_one_of_the_flags(data, trained, tmp_path, capsys, verb):
    path, run = data[CLASSIFIER.name], trained[CLASSIFIER.name]
    flags = {"do_train": False, verb: True, "predict_file": path / "dev.tsv"}
    with changed(path / "bert_config.json", {"num_hidden_layers": 2}):
        message = refused(CLASSIFIER, path, tmp_path / "new", capsys, init_checkpoint=run, **flags)
    assert f"--init_checkpoint: {run}: is a network with num_hidden_layers=" in message
    assert "but --bert_config_file has 2. Give its own file" in message


def test_an_evaluation_may_have_another_dropout(data, trained, tmp_path):
    path, run = data[CLASSIFIER.name], tmp_path / "run"
    shutil.copytree(trained[CLASSIFIER.name], run)
    flags = CLASSIFIER.flags(path, run, do_train=False, do_eval=True)
    with changed(path / "bert_config.json", {"hidden_dropout_prob": 0.3}):
        assert CLASSIFIER.module.main([CLASSIFIER.name, *flags]) == 0


def test_records_of_another_vocabulary(data, trained, tmp_path, capsys):
    path, run = tmp_path / "other", trained[PRETRAINING.name]
    path.mkdir()
    write_records(path, "train.tfrecord", words(40)[::-1])
    same = {"bert_config_file": data[PRETRAINING.name] / "bert_config.json"}
    message = refused(PRETRAINING, path, run, capsys, do_train=False, do_eval=True, **same)
    assert (
        f"--input_file={path}/train.tfrecord: its records were made with another vocabulary, "
        f"--do_lower_case or --strip_accents than the run in {run} was trained with"
    ) in message
    resumed, of_run = shutil.copytree(run, tmp_path / "resumed"), data[PRETRAINING.name]
    with changed(resumed / "task.json", {"do_lower_case": False}):
        message = refused(PRETRAINING, of_run, resumed, capsys, do_train=True)
    assert f"--input_file={of_run}/train.tfrecord: its records were made with anoth" in message
    evaluates = {"do_train": False, "do_eval": True, "init_checkpoint": run}
    message = refused(PRETRAINING, path, tmp_path / "eval", capsys, **same, **evaluates)
    assert f"--input_file: {run} was trained with the vocabulary" in message
    message = refused(PRETRAINING, path, tmp_path / "new", capsys, **same, init_checkpoint=run)
    assert f"--input_file: {run} was trained with the vocabulary" in message
    assert "token 5 is 'w0', and" in message and "has 'w39' there" in message
    assert "add --allow_partial_init to go on all the same" in message


@pytest.mark.parametrize(
    ("field", "values", "is_allowed"),
    [
        ("vocab_sha256", ("a", "a"), True),
        ("vocab_sha256", ("a", "b"), False),
        ("vocab_sha256", ("a", None), True),
        ("casing", (Casing(True), Casing(False)), False),
        ("casing", (Casing(True), Casing(True, False)), False),
        ("casing", (Casing(True), Casing(True)), True),
    ],
)
def test_stages_of_a_recipe_have_one_vocabulary(field, values, is_allowed):
    stages = [("records", PretrainingData("", "", 1, "", "", False, **{field: v})) for v in values]
    expected = pytest.raises(FlagError, match=r"^--input_file=records: .* of the stage before$")
    with contextlib.nullcontext() if is_allowed else expected:
        check_stages(stages)


@pytest.mark.parametrize(
    ("tokens", "changes", "message"),
    [
        (words(30)[::-1], {}, "whose token 5 is 'w0', and"),
        (words(30), {"do_lower_case": False}, "trained with True for --do_lower_case, not False"),
        (words(30), {"strip_accents": False}, "with the default for --strip_accents, not False"),
        (["Ww", *words(30)[1:]], {"do_lower_case": None}, None),
    ],
)
def test_a_vocabulary_that_the_first_network_did_not_learn(
    data, trained, tmp_path, capsys, logged, tokens, changes, message
):
    start = tmp_path / "start"
    shutil.copytree(trained[CLASSIFIER.name], start)
    vocab_file = tmp_path / "vocab.txt"
    write_vocab([*SPECIAL_TOKENS, *tokens], str(vocab_file))
    if message is None:  # a token was not used yet
        text = (start / "vocab.txt").read_text()
        (start / "vocab.txt").write_text(text.replace("w0\n", "[unused0]\n"))
        vocab_file.write_text(vocab_file.read_text().replace("Ww", "ww"))
    changes = {"init_checkpoint": start, "vocab_file": vocab_file, **changes}
    path = data[CLASSIFIER.name]
    if message is not None:
        assert message in refused(CLASSIFIER, path, tmp_path / "run", capsys, **changes)
        changes["allow_partial_init"] = True
    flags = CLASSIFIER.flags(path, tmp_path / "run", do_train=True, **changes)
    assert CLASSIFIER.module.main([CLASSIFIER.name, *flags]) == 0
    assert (message is None) == (not any("--vocab_file: " in text for _, text in logged))


def test_embedded_tasks_take_a_network_of_their_own(trained, tmp_path):
    """Its sizes, its vocabulary and its length come along; so they do without training."""
    start, run = trained[PRETRAINING.name], tmp_path / "run"
    flags = ["--max_seq_length=16", "--num_train_epochs=0.05", f"--output_dir={run}"]
    flags += ["--task_kind=tagging", f"--init_checkpoint={start}"]
    assert run_classifier.main(["run_classifier.py", *flags, "--do_train"]) == 0
    same = ("bert_config.json", "vocab.txt")
    assert all((run / name).read_bytes() == (start / name).read_bytes() for name in same)
    alone = ["--task_name=code_words", "--do_eval", f"--output_dir={run}"]
    assert run_classifier.main(["run_classifier.py", *alone]) == 0
    assert json.loads((run / "task.json").read_text())["max_seq_length"] == 16


def test_pretraining_goes_on_from_a_directory_alone(data, trained, tmp_path):
    start, path = trained[PRETRAINING.name], data[PRETRAINING.name]
    flags = {"init_checkpoint": start, "bert_config_file": None, "do_train": True}
    assert PRETRAINING.module.main(["", *PRETRAINING.flags(path, tmp_path / "run", **flags)]) == 0
    own, its = (json.loads((d / "bert_config.json").read_text()) for d in (tmp_path / "run", start))
    assert own == its


def test_pretraining_goes_on_from_a_masked_language_model(tmp_path, logged):
    """It brings its sizes along, and lacks what predicts the next sentence, which one line says."""
    start = fixtures.DATA / "hf_masked_lm"
    write_records(tmp_path, "train.tfrecord", (start / "vocab.txt").read_text().split()[5:])
    flags = {"init_checkpoint": start, "bert_config_file": None, "num_train_steps": 2}
    flags |= {"num_warmup_steps": 0, "do_train": True, "do_eval": True}
    assert (
        PRETRAINING.module.main(["", *PRETRAINING.flags(tmp_path, tmp_path / "run", **flags)]) == 0
    )
    said = [text for _, text in logged]
    assert sum(f"{start} has no pooler (bert/pooler) and no next-" in s for s in said) == 1
    assert not any("newly initialized" in text for text in said)


@pytest.mark.parametrize(
    ("start", "lacks"),
    [
        ("hf_encoder", "masked-word head (cls/predictions)"),
        ("hf_masked_lm", "pooler (bert/pooler)"),
        ("hf_electra", "pooler (bert/pooler)"),
        ("hf_pretraining", None),
    ],
)
def test_an_evaluation_alone_needs_all_heads(tmp_path, capsys, start, lacks):
    """Scores of new weights would be of nothing, unless a flag allows them."""
    start = fixtures.DATA / start
    write_records(tmp_path, "train.tfrecord", (start / "vocab.txt").read_text().split()[5:])
    flags = {"init_checkpoint": start, "bert_config_file": None, "do_train": False}
    flags["do_eval"] = True
    if lacks is not None:
        message = refused(PRETRAINING, tmp_path, tmp_path / "run", capsys, **flags)
        assert f"--init_checkpoint={start}: lacks the {lacks}, so it cannot be eval" in message
        flags["allow_partial_init"] = True
    flags = PRETRAINING.flags(tmp_path, tmp_path / "run", **flags)
    assert PRETRAINING.module.main([PRETRAINING.name, *flags]) == 0


def test_what_a_named_start_changes_in_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def resolve(*flags):
        (config,) = classification_config.resolve(["run_classifier.py", *flags])
        values = config.settings()
        return [values[n] for n in ("task_name", "learning_rate", "init_checkpoint", "vocab_file")]

    assert resolve() == ["word_order", 3e-4, None, None]
    (tmp_path / "runs/pretraining/data").mkdir(parents=True)
    (tmp_path / "runs/pretraining/data/vocab.txt").write_text("")
    (tmp_path / "runs/pretraining/checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    for name in ("runs/pretraining/model.ckpt-7.index", "other.index", "network.json"):
        (tmp_path / name).write_text("{}")
    main_job = ["runs/pretraining/model.ckpt-7", "runs/pretraining/data/vocab.txt"]
    assert resolve() == ["word_order", 3e-4, *main_job]
    assert resolve("--task_kind=tagging") == ["code_words", 1e-3, *main_job]
    assert resolve("--init_checkpoint=other") == ["word_order", 5e-5, "other", None]
    assert resolve("--init_checkpoint=") == ["word_order", 3e-4, None, main_job[1]]
    assert resolve("--bert_config_file=network.json") == ["word_order", 3e-4, None, None]
    assert resolve("--do_eval") == ["word_order", 3e-4, None, None]


@pytest.mark.parametrize(
    ("verb", "start"), [("do_eval", "output_dir"), ("do_predict", "init_checkpoint")]
)
def test_a_network_alone_has_its_own_length(data, trained, tmp_path, verb, start):
    path, run = data[CLASSIFIER.name], tmp_path / "run"
    shutil.copytree(trained[CLASSIFIER.name], run)
    files = {"eval_file": path / "dev.tsv", "predict_file": path / "dev.tsv"}
    results = []
    for length in (None, 10, 5):
        output_dir = run if start == "output_dir" and length is None else tmp_path / f"{length}"
        flags = {"max_seq_length": length, "do_train": False, verb: True, **files}
        flags |= {"output_dir": output_dir, "train_file": None}
        if output_dir != run:
            flags |= {"init_checkpoint": run}
        assert CLASSIFIER.module.main([CLASSIFIER.name, *CLASSIFIER.flags(path, **flags)]) == 0
        name = "eval_results.txt" if verb == "do_eval" else "test_results.tsv"
        results.append((output_dir / name).read_text())
    assert results[0] == results[1] != results[2]
