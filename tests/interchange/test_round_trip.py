"""Others' weights fine-tuned here and given back: what comes out is what was trained."""

import json
import shutil

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import variables_of

import run_classifier
from bert_estimator.interchange import __main__ as command
from bert_estimator.interchange import network_variables, open_source
from bert_estimator.interchange.weights import fixed_batch, logits_of, open_network
from bert_estimator.serving import exported_model
from bert_estimator.serving.exported_model import Reading
from bert_estimator.tokenization import FullTokenizer
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features

LENGTH, STEPS, RATE = 16, 6, 1e-3
LABELS = ("no", "perhaps", "yes")


def pairs(number, seed):
    """Pairs of texts, of the words of the models' vocabularies, cased or not, and one more."""
    generator = np.random.default_rng(seed)
    for _ in range(number):
        words = [f"Word{i}" for i in generator.integers(36, size=8)]
        end = generator.integers(1, 5)
        yield " ".join(words[:end]), " ".join(words[4:])


PREDICTED = list(pairs(13, seed=2))


def fine_tune(model, vocab_file, tmp_path, **changes):
    """Trains the model of a directory for some steps; returns the run's directory."""
    train = [f"{a}\t{b}\t{LABELS[i % 3]}" for i, (a, b) in enumerate(pairs(8 * STEPS, seed=1))]
    for name, header, lines in (
        ("train", "sentence1\tsentence2\tlabel", train),
        ("test", "sentence1\tsentence2", ["\t".join(pair) for pair in PREDICTED]),
    ):
        (tmp_path / f"{name}.tsv").write_text("\n".join([header, *lines]) + "\n")
    flags = {
        "init_checkpoint": model,
        "bert_config_file": config_of(model),
        "vocab_file": vocab_file,
        "train_file": tmp_path / "train.tsv",
        "predict_file": tmp_path / "test.tsv",
        "output_dir": tmp_path / "run",
        "max_seq_length": LENGTH,
        "train_batch_size": 8,
        "num_train_epochs": 1,
        "learning_rate": RATE,
        "do_train": True,
        "do_eval": False,
        "do_export": True,
        "export_inputs": "ids",  # text is another matter
        **changes,
    }
    argv = [f"--{name}={value}" for name, value in flags.items()]
    assert run_classifier.main(["run_classifier.py", *argv]) == 0
    return tmp_path / "run"


def convert(source, target):
    """Runs the command without flags: a run's directory has its network and its vocabulary."""
    assert command.main(["interchange", str(source), str(target)]) == 0


def batch_of(vocab_file, do_lower_case=True):
    """The ids that PREDICTED are here."""
    examples = [Example(a, b, None) for a, b in PREDICTED]
    features = Features(examples, FullTokenizer(str(vocab_file), do_lower_case), LENGTH)
    batch = features.batch(np.arange(len(PREDICTED)))
    return {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}


def exported_logits(run, batch):
    """What the run's SavedModel says."""
    (path,) = (run / "export").iterdir()
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, [tf.saved_model.SERVING], str(path))
        signature = model.signature_def["serving_default"]
        feed = {signature.inputs[name].name: value for name, value in batch.items()}
        return session.run(signature.outputs["logits"].name, feed)


def assert_fine_tuned(trained, initial):
    """That the weights are the initial ones, a few steps later: not equal, and not new ones."""
    # Without bias correction AdamW's first steps are up to 0.1 / sqrt(0.001) = 3.2 rates long.
    furthest = 3.2 * STEPS * RATE
    for name, value in initial.items():
        if name in trained:
            assert 0 < np.max(np.abs(trained[name] - value)) < furthest, name


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def with_relu(model, folder):
    """Copies a model, whose activation becomes ReLU: GELU is compiled anew in each session."""
    shutil.copytree(model, folder)
    config = config_of(folder)
    config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_act": "relu"}))
    return folder


def config_of(model):
    """Returns the path of a model's configuration."""
    (config,) = (p for p in model.iterdir() if p.name in ("config.json", "bert_config.json"))
    return config


@pytest.mark.parametrize(
    ("name", "do_lower_case"),
    [
        ("hf_classifier", True),
        pytest.param("hf_pretraining", True, marks=pytest.mark.slow),
        ("tf1", False),
    ],
)
def test_a_fine_tuned_model_goes_into_both_formats(tmp_path, name, do_lower_case):
    """`hf_classifier` has a head of as many labels, which is trained on; the others get a new one.
    `hf_pretraining` has the exact GELU. The others have the quicker ReLU here."""
    model = fixtures.DATA / name
    if name != "hf_pretraining":
        model = with_relu(model, tmp_path / "model")
    initial = fixtures.weights_of(open_source(str(model)))
    vocab_file = model / "vocab.txt"
    run = fine_tune(model, vocab_file, tmp_path, do_lower_case=do_lower_case)
    trained = variables_of(run, STEPS)
    assert_fine_tuned(trained, initial)
    convert(run, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "tf1")

    head = {"output_weights": [3, initial["bert/pooler/dense/bias"].size], "output_bias": [3]}
    shapes = {k: list(v.shape) for k, v in initial.items() if k.startswith("bert/")}
    prefix = str(tmp_path / "tf1" / "bert_model.ckpt")
    assert dict(tf.train.list_variables(prefix)) == {**shapes, **head}
    for key in (*shapes, *head):
        value = tf.train.load_variable(prefix, key)
        np.testing.assert_array_equal(value, trained[key], err_msg=key)

    batch = batch_of(vocab_file, do_lower_case)
    expected = exported_logits(run, batch)
    with open(tmp_path / "hf" / "config.json", encoding="utf-8") as reader:
        assert json.load(reader)["id2label"] == dict(zip("012", sorted(LABELS), strict=True))
    with open(tmp_path / "hf" / "tokenizer_config.json", encoding="utf-8") as reader:
        assert json.load(reader)["do_lower_case"] is do_lower_case
    sources = [open_source(str(tmp_path / folder)) for folder in ("hf", "tf1")]
    assert sources[0].config == sources[1].config
    with open_network(sources[0].config, {*shapes, *head}, batch) as outputs_of:
        for source in sources:
            assert source.labels == tuple(sorted(LABELS))
            found = outputs_of(fixtures.weights_of(source))
            assert_close(found["classifier_logits"], expected)
            with open(source.vocab_file, "rb") as reader:
                assert reader.read() == vocab_file.read_bytes()


@pytest.mark.slow
@fixtures.needs_tensorflow_1
def test_tensorflow_1_checkpoint_fine_tuned_here_is_restored_there(tmp_path):
    """Through Hugging Face's format, so that every transpose is undone."""
    model = tmp_path / "model"
    fixtures.tensorflow_1("make", model)
    run = fine_tune(model, model / "vocab.txt", tmp_path, do_lower_case=False)
    convert(run, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "tf1")
    fixtures.tensorflow_1("list", tmp_path / "tf1" / "bert_model.ckpt", tmp_path / "list.json")
    trained = fixtures.weights_of(open_source(str(run)))
    assert json.loads((tmp_path / "list.json").read_text()) == {
        name: [list(value.shape), float(np.sum(value, dtype=np.float64))]
        for name, value in trained.items()
    }
    assert {"output_weights", "output_bias"} == {k for k in trained if not k.startswith("bert/")}


@pytest.fixture
def answering(tmp_path):
    """Returns (directory in Google's layout, its weights): random, with the head of answers."""
    source = open_source(str(fixtures.TF1))
    random = np.random.default_rng(4)
    weights = {name: v for name, v in fixtures.weights_of(source).items() if "bert/" in name}
    for name, shape in network_variables.head_shapes(source.config, 0)[
        network_variables.ANSWER
    ].items():
        weights[name] = random.normal(size=shape).astype(np.float32)
    facts = {"vocab_file": source.vocab_file, "max_seq_length": 20}
    (tmp_path / "google").mkdir()
    fixtures.write_tf1(tmp_path / "google", source.config, weights, **facts)
    return tmp_path / "google", weights


def test_a_network_that_answers_goes_there_and_back(tmp_path, answering):
    """Its names there are transformers' own; the pooler, which answers do not need, stays here."""
    google, weights = answering
    convert(google, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "back")
    tensors = fixtures.tensors_of(tmp_path / "hf")
    head = weights["cls/squad/output_weights"]
    np.testing.assert_array_equal(tensors["qa_outputs.weight"], head)
    assert tensors["qa_outputs.bias"].shape == (2,)
    assert not [name for name in tensors if "pooler" in name]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    back = fixtures.weights_of(open_source(str(tmp_path / "back")))
    assert sorted(back) == sorted(name for name in weights if "/pooler/" not in name)
    for name, value in back.items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    outputs = logits_of(open_source(str(google)).config, weights)
    tokens = outputs["sequence_output"].astype(np.float64)
    expected = tokens @ head.T + weights["cls/squad/output_bias"]
    np.testing.assert_allclose(outputs["answer_logits"], expected, rtol=1e-4, atol=1e-5)


ANSWER, CLASSIFIER = network_variables.ANSWER, network_variables.CLASSIFIER
# Of a network that answers and of a tagger: its head, and facts with values that are not usual.
FACTS = {
    "answers": (f"{ANSWER}/output_", 2, {
        "doc_stride": 7, "max_query_length": 5, "n_best_size": 3, "max_answer_length": 2,
        "null_score_diff_threshold": -1.5,
    }),
    "tags": ("output_", 3, {"words": "characters"}),
}  # fmt: skip
WAYS = [["tf1"], ["hf"], ["onnx"], ["hf", "tf1"], ["hf", "onnx"], ["tf1", "onnx"]]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", FACTS)
def test_what_the_predictor_reads_goes_along(tmp_path, kind, way):
    """However a network is converted, words are the training's, and answers are found as there."""
    source, (head, number, reading) = open_source(str(fixtures.TF1)), FACTS[kind]
    weights = {name: v for name, v in fixtures.weights_of(source).items() if "bert/" in name}
    weights[f"{head}weights"] = np.ones([number, source.config.hidden_size], np.float32)
    weights[f"{head}bias"] = np.zeros(number, np.float32)
    facts = {"vocab_file": source.vocab_file, "max_seq_length": 16, "do_lower_case": True}
    if kind == "tags":
        facts |= {"kind": "tagging", "labels": ("O", "B-X", "I-X"), "is_pair": False}
    (tmp_path / "start").mkdir()
    fixtures.write_tf1(tmp_path / "start", source.config, weights, reading=reading, **facts)
    folder = tmp_path / "start"
    for to in way:
        target = folder.with_name(f"{folder.name}-{to}")
        assert command.main(["interchange", str(folder), str(target), f"--to={to}"]) == 0
        folder = target
    if way[-1] == "hf":
        assert open_source(str(folder)).reading == reading
        return
    checkpoints = [str(path).removesuffix(".index") for path in folder.glob("*.index")]
    task = exported_model.read_task(checkpoints[0] if way[-1] == "tf1" else str(folder))
    assert (task.casing.do_lower_case, task.max_seq_length) == (True, 16)
    if kind == "tags":
        assert (task.kind, task.words, task.labels) == ("tagging", "characters", facts["labels"])
        return
    search = Search(3, 2, False, -1.5)
    assert (task.kind, task.reading) == ("question_answering", Reading(7, 5, search))


@pytest.mark.slow
@fixtures.needs_transformers
def test_transformers_computes_the_same_answers(tmp_path, answering):
    google, weights = answering
    convert(google, tmp_path / "hf")
    config = open_source(str(google)).config
    batch = fixed_batch(config)
    np.savez(tmp_path / "batch.npz", **batch)
    fixtures.transformers("logits", tmp_path / "hf", tmp_path / "batch.npz", tmp_path / "out.npz")
    expected = logits_of(config, weights, batch)
    with np.load(tmp_path / "out.npz") as found:
        is_real = batch["input_mask"].astype(bool)
        assert_close(found["answer_logits"][is_real], expected["answer_logits"][is_real])
