"""A run knows its own flags; and a network that others trained is not judged by embedded data."""

import json
import shutil

import pytest
from fixtures import DATA
from tiny_run import bert_config, questions, squad_flags, words, write_questions

import run_classifier
import run_pretraining
import run_squad
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.jobs.fine_tuning import classification_config, question_answering_config
from bert_estimator.jobs.pretraining import pretraining_config
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

CLASSIFIER, SQUAD = "run_classifier", "run_squad"
PRETRAINING = "run_pretraining"
RESOLVE = {
    CLASSIFIER: classification_config.resolve,
    SQUAD: question_answering_config.resolve,
    PRETRAINING: pretraining_config.resolve,
}
MAIN = {
    CLASSIFIER: run_classifier.main,
    SQUAD: run_squad.main,
    PRETRAINING: run_pretraining.main,
}
FILES = ["--vocab_file={}/vocab.txt", "--bert_config_file={}/bert_config.json"]
OWN = ["--train_file={}/train.tsv", "--eval_file={}/dev.tsv", "--predict_file={}/dev.tsv", *FILES]
# Script -> the flags of trainings, and what a command that names the run is not told again.
RUNS = [
    (CLASSIFIER, [*OWN, "--text_a_column=3", "--label_column=1", "--nodo_lower_case"]),
    (CLASSIFIER, [*OWN, "--task_kind=regression", "--encoding=cp1252", "--max_seq_length=16"]),
    (CLASSIFIER, [*OWN, "--task_kind=tagging", "--optimizer=lamb", "--noallow_partial_init"]),
    (CLASSIFIER, ["--task_name=mrpc", "--data_dir={}", *FILES]),
    (CLASSIFIER, ["--task_name=xnli", "--data_dir={}", "--language=fr", *FILES]),
    (CLASSIFIER, []),
    (CLASSIFIER, ["--task_name=summary", "--max_seq_length=24"]),
    (CLASSIFIER, ["--task_kind=tagging"]),
    (CLASSIFIER, [*OWN, "--long_texts=windows", "--doc_stride=7"]),
    (SQUAD, [*OWN, "--version_2_with_negative", "--doc_stride=7"]),
    (SQUAD, [*OWN, "--version_2_with_negative", "--null_score_diff_threshold=-2"]),
    (SQUAD, [*OWN, "--max_query_length=9", "--n_best_size=3", "--max_seq_length=40"]),
    (SQUAD, []),
    (SQUAD, ["--max_seq_length=80", "--doc_stride=11"]),
    (PRETRAINING, ["--input_file={}/train.tsv", FILES[1], "--max_predictions_per_seq=3"]),
    (PRETRAINING, ["--input_file={0}/train.tsv", "--eval_input_file={0}/dev.tsv", FILES[1]]),
    (PRETRAINING, []),
]  # fmt: skip


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.tsv", "dev.tsv", "vocab.txt", "bert_config.json"):
        (tmp_path / name).write_text("x\n")
    return tmp_path


def trained(path, script, argv):
    """Makes the directory of a training; returns its configuration."""
    argv = [script, *(flag.format(path.parent) for flag in argv), f"--output_dir={path}"]
    (config,) = RESOLVE[script]([*argv, "--do_train", "--precision=bfloat16"])
    path.mkdir()
    RunDirectory(str(path)).write_config(config.settings(), config.sources, "")
    (path / "model.ckpt-4.index").write_text("")
    return config


def verbs_of(script):
    return ["do_eval"] if script == PRETRAINING else ["do_eval", "do_predict", "do_export"]


@pytest.mark.parametrize("place", ["output_dir", "init_checkpoint", "best"])
@pytest.mark.parametrize(("script", "argv"), RUNS)
def test_a_run_is_not_told_what_it_knows(data, script, argv, place):
    run = data / "run"
    before = trained(run, script, argv)
    (data / "train.tsv").unlink() if script != PRETRAINING else None
    naming = [f"--output_dir={run}"]
    if place != "output_dir":
        (run / "best").mkdir()
        for folder in (run, run / "best"):
            (folder / "model.ckpt-4.index").write_text("")
        folder = run / "best" if place == "best" else run
        naming = [f"--init_checkpoint={folder}/model.ckpt-4", f"--output_dir={data}/other"]
    for verb in verbs_of(script):
        (config,) = RESOLVE[script]([script, f"--{verb}", *naming])
        settings = config.settings_to_go_on()
        if place == "output_dir":
            RunDirectory(str(run)).check_config(settings)
        kept = {n: v for n, v in before.settings().items() if n in settings}
        for name in ("init_checkpoint", "output_dir", "recipe", "scale", "stage"):
            kept.pop(name, None)
            settings.pop(name, None)
        assert settings == kept and config.network.precision == "bfloat16"
        assert config.embedded == before.embedded
        values, values_before = flags.values_of(config), flags.values_of(before)
        names = {"do_eval": ["eval_file", "eval_input_file"], "do_predict": ["predict_file"]}
        own = ["null_score_diff_threshold", "n_best_size", "long_texts", "doc_stride"]
        for name in [*names.get(verb, []), *own]:
            assert values.get(name) == values_before.get(name)


def test_the_command_line_comes_first(data):
    trained(data / "run", *RUNS[0])
    naming = [f"--output_dir={data}/run", "--do_eval", "--do_predict"]
    new = [f"--eval_file={data}/new.tsv", "--precision=float32"]
    (data / "new.tsv").write_text("")
    (config,) = RESOLVE[CLASSIFIER]([CLASSIFIER, *naming, *new])
    assert config.data.eval_file == f"{data}/new.tsv" and config.network.precision == "float32"
    assert config.data.predict_file == f"{data}/dev.tsv" and config.data.text_a_column == "3"


def test_own_files_take_the_place_of_a_named_task(data):
    trained(data / "run", CLASSIFIER, ["--task_name=mrpc", "--data_dir={}", *FILES])
    naming = [f"--output_dir={data}/run", "--do_predict", f"--predict_file={data}/dev.tsv"]
    (config,) = RESOLVE[CLASSIFIER]([CLASSIFIER, *naming])
    assert (config.data.task_name, config.data.data_dir) == (None, None)
    assert not config.embedded


def test_training_recalls_nothing(data):
    trained(data / "run", CLASSIFIER, [])
    (config,) = RESOLVE[CLASSIFIER]([CLASSIFIER, f"--output_dir={data}/run", "--do_train"])
    assert config.network.precision == "float32"


def test_runs_of_another_script_are_networks_of_others(data):
    trained(data / "run", PRETRAINING, [])
    with pytest.raises(flags.FlagError, match="no run of this script trained it"):
        RESOLVE[CLASSIFIER]([CLASSIFIER, "--do_eval", f"--init_checkpoint={data}/run"])


def networks(path):
    """Makes networks that others trained, as flags that name them."""
    shutil.copytree(DATA / "tf1", path / "tf1")
    shutil.copytree(DATA / "hf_classifier", path / "hf")
    shutil.make_archive(str(path / "packed"), "zip", path / "tf1")
    prefix = str(next((path / "tf1").glob("*.index"))).removesuffix(".index")
    yield from (f"--init_checkpoint={place}" for place in ("tf1", "hf", "packed.zip", prefix))
    (path / "theirs").mkdir()
    (path / "theirs" / "model.ckpt-9.index").write_text("")
    yield "--output_dir=theirs"


@pytest.mark.parametrize("verb", ["do_eval", "do_predict", "do_eval --do_export", "nodo_train"])
@pytest.mark.parametrize("script", RESOLVE)
def test_networks_of_others_are_not_judged_by_embedded_data(data, script, verb, capsys):
    if script == PRETRAINING and ("predict" in verb or "export" in verb):
        pytest.skip("it only evaluates")
    for naming in networks(data):
        argv = [script, *f"--{verb}".split(), naming]
        assert MAIN[script](argv) == 2
        err = capsys.readouterr().err
        assert f"{script}.py: {naming}: nothing says what this network is to be judged by" in err
        assert "--input_file" in err if script == PRETRAINING else "--eval_file" in err
        assert not (data / "runs").exists()
        assert script != CLASSIFIER or "--task_name=word_order" in err


@pytest.mark.parametrize("script", RESOLVE)
def test_networks_of_others_are_trained_on_embedded_data(data, script):
    for naming in networks(data):
        for verbs in ([], ["--do_train"], ["--do_train", "--do_eval"]):
            (config,) = RESOLVE[script]([script, *verbs, naming])
            assert config.embedded


def test_networks_of_others_are_exported_without_the_settings_of_embedded_tasks(data):
    for script in (CLASSIFIER, SQUAD):
        for naming in networks(data):
            (config,) = RESOLVE[script]([script, "--do_export", naming])
            assert not config.embedded
            assert not flags.values_of(config).get("version_2_with_negative")
        for name in ("tf1", "hf", "theirs"):
            shutil.rmtree(data / name)


@pytest.fixture
def answering(tmp_path):
    """Makes a network for answers in Hugging Face's format, trained as for SQuAD 2.0."""
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(tmp_path / "vocab.txt"))
    (tmp_path / "bert_config.json").write_text(json.dumps(bert_config(30)))
    for name in ("train", "dev"):
        write_questions(tmp_path / f"{name}.json", questions(16, 1, impossible=4))
    argv = squad_flags(tmp_path, tmp_path / "run", version_2_with_negative=True)
    assert run_squad.main([SQUAD, *argv, "--do_train"]) == 0
    hf = tmp_path / "hf"
    assert interchange.main(["interchange", str(tmp_path / "run"), str(hf), "--to=hf"]) == 0
    return hf


def exported_rule(tmp_path, hf, *more):
    """Exports; returns (exit code, what the export says of questions without an answer)."""
    output = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    argv = [SQUAD, "--do_export", f"--init_checkpoint={hf}", f"--output_dir={output}"]
    argv += ["--max_query_length=8", "--export_inputs=ids", *more]
    code = run_squad.main(argv)
    tasks = list(output.glob("export/*/assets.extra/task.json"))
    task = json.loads(tasks[0].read_text()) if tasks else {}
    return code, task.get("version_2_with_negative")


def test_answers_of_others_are_exported_by_their_own_rules(answering, tmp_path, capsys):
    assert exported_rule(tmp_path, answering) == (0, True)
    assert exported_rule(tmp_path, answering, "--noversion_2_with_negative") == (2, None)
    values = json.loads((answering / "config.json").read_text())
    del values["bert_estimator"]  # transformers does not write it
    (answering / "config.json").write_text(json.dumps(values))
    capsys.readouterr()
    assert exported_rule(tmp_path, answering) == (2, None)
    assert capsys.readouterr().err.endswith(
        f"run_squad.py: --init_checkpoint={answering}: nothing beside this network says whether it "
        "may leave questions without an answer, as for SQuAD 2.0; add --version_2_with_negative, "
        "or --noversion_2_with_negative if it answers all\n"
    )
    assert exported_rule(tmp_path, answering, "--noversion_2_with_negative") == (0, False)
    assert exported_rule(tmp_path, answering, "--version_2_with_negative") == (0, True)
    assert exported_rule(tmp_path, answering, f"--eval_file={tmp_path}/dev.json") == (0, False)


def test_an_embedded_task_that_is_named_judges_any_network(data):
    shutil.copytree(DATA / "hf_classifier", data / "hf")
    argv = [CLASSIFIER, "--do_eval", f"--init_checkpoint={data}/hf", "--task_name=word_order"]
    (config,) = RESOLVE[CLASSIFIER](argv)
    assert config.embedded
