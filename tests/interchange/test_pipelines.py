"""What transformers' own pipelines answer to real strings, with models that were trained here."""

import json

import fixtures
import numpy as np
import pytest
from tiny_run import bert_config, pretraining_flags

import run_classifier
import run_pretraining
from bert_estimator.interchange import __main__ as command
from bert_estimator.interchange import open_source, weights
from bert_estimator.serving.predictor import Predictor
from bert_estimator.tokenization import FullTokenizer, train_vocabulary, write_vocab
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings

pytestmark = [pytest.mark.slow, fixtures.needs_transformers]

POSITIONS = 24
LENGTH = 15  # odd: of long pairs, transformers cuts another token than BERT if it is even
TEXTS = (
    "The quick brown fox didn't jump over the lazy dog.",
    "Größe und Maß: 1,234.50 € (gestern)!",
    "Les élèves sont déjà arrivés à l'école, n'est-ce pas?",
    "BERT reads US dollars, us dollars and U.S. dollars.",
    "我们在北京 study 中文。",
    "e-mail: someone@example.com, see https://example.com/a_b?c=d",
    "  tabs\tand  spaces\n ",
    "naïve café ﬁnance ½",
    "Straße \U0001f600 unknown \u0416",
    "a",
    # Where the tokenizers of transformers differ by themselves.
    "\u039f\u0394\u039f\u03a3 \uf0b7 bullet\u2e4f " + "ab" * 70,
    "long " * 60 + "text, with many more tokens than the network has positions.",
)
LABELS = ("gewiß, ja", "LABEL_0", "n/a")
TAGS = ("O", "B-X", "I-X")

# Kind of task -> (label of a row, whether its texts are pairs, --task_kind).
KINDS = {
    "classification": (lambda row: LABELS[row % 3], False, "classification"),
    "pairs": (lambda row: LABELS[row % 3], True, "classification"),
    "regression": (lambda row: row / 2, False, "regression"),
    "multi_label": (lambda row: list(LABELS[: row % 4]), False, "multi_label"),
}


@pytest.fixture(scope="module")
def pipeline():
    """Starts the oracle's process; returns a function (task, model's path, inputs, **options)."""
    with fixtures.transformers_answering("pipelines") as ask:
        yield lambda task, folder, inputs, **options: ask(
            task=task, folder=str(folder), inputs=inputs, options=options
        )


def write_network(path, hidden_act, do_lower_case):
    """Writes `vocab.txt`, trained on TEXTS, and `bert_config.json`."""
    vocab = train_vocabulary([*TEXTS, *TEXTS], 240, do_lower_case, character_coverage=1.0)
    vocab.remove("ж" if do_lower_case else "Ж")  # one character stays unknown
    write_vocab(vocab, str(path / "vocab.txt"))
    sizes = {
        "vocab_size": len(vocab),
        "hidden_act": hidden_act,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,  # large enough that every text has an answer of its own
    }
    (path / "bert_config.json").write_text(json.dumps(bert_config(0, **sizes)))


def fine_tune(path, kind, do_lower_case):
    """Trains on TEXTS for some steps; returns the run's directory."""
    label_of, is_pair, task_kind = KINDS[kind]
    rows = [{"text_a": text, "label": label_of(row)} for row, text in enumerate(TEXTS * 3)]
    for row, values in enumerate(rows if is_pair else ()):
        values["text_b"] = TEXTS[(row * 7 + 3) % len(TEXTS)]
    for name in ("train", "dev"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return train(
        path, do_lower_case, task_kind=task_kind, text_b_column="text_b" if is_pair else None
    )


def train(path, do_lower_case, **changes):
    """Trains on `train.jsonl` for some steps; returns the run's directory."""
    flags = {
        "train_file": path / "train.jsonl",
        "eval_file": path / "dev.jsonl",
        "text_a_column": "text_a",
        "label_column": "label",
        "vocab_file": path / "vocab.txt",
        "bert_config_file": path / "bert_config.json",
        "output_dir": path / "run",
        "do_lower_case": do_lower_case,
        "max_seq_length": LENGTH,
        "train_batch_size": 8,
        "num_train_epochs": 1,
        "learning_rate": 2e-3,  # higher rates give all texts about one answer
        "do_train": True,
        "do_export": True,
        "keep_best_checkpoint": True,
        "save_checkpoints_steps": 1,
        **changes,
    }
    argv = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    assert run_classifier.main(["run_classifier.py", *argv]) == 0
    return flags["output_dir"]


def convert(source, target, *flags):
    assert command.main(["interchange", str(source), str(target), *flags]) == 0


def as_answers(found):
    """The pipelines' answers as `Predictor.predict` gives them: label -> number, of each text."""
    return [{each["label"]: each["score"] for each in scores} for scores in found]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for theirs, ours in zip(found, expected, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize("do_lower_case", [True, False], ids=["uncased", "cased"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_erf"], ids=["gelu_new", "gelu"])
@pytest.mark.parametrize("kind", KINDS)
def test_pipelines_answer_as_the_predictor(tmp_path, pipeline, kind, hidden_act, do_lower_case):
    """And so they do after a way there and back, through Google's layout."""
    write_network(tmp_path, hidden_act, do_lower_case)
    run = fine_tune(tmp_path, kind, do_lower_case)
    convert(run, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "tf1")
    convert(tmp_path / "tf1", tmp_path / "back")
    predictor = Predictor(str(run))
    if KINDS[kind][1]:
        texts = [(TEXTS[i], TEXTS[(i * 3 + 1) % len(TEXTS)]) for i in range(len(TEXTS))]
        texts.append((TEXTS[-1], TEXTS[-1]))  # both are cut
        inputs = [{"text": first, "text_pair": second} for first, second in texts]
    else:
        texts = inputs = list(TEXTS)
    found = predictor.predict(texts)
    names = predictor.labels or ("LABEL_0",)
    output = "logits" if predictor.kind == "regression" else "probabilities"
    expected = [dict(zip(names, map(float, row), strict=True)) for row in found[output]]
    assert predictor.num_cut > 0
    assert len(np.unique(found[output].round(4), axis=0)) == len(texts)
    for folder in ("hf", "back"):
        answers = pipeline(
            "text-classification", tmp_path / folder, inputs, truncation=True, top_k=None
        )
        assert_same(as_answers(answers), expected)


@pytest.mark.parametrize("do_lower_case", [True, False], ids=["uncased", "cased"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_erf"], ids=["gelu_new", "gelu"])
def test_the_pipeline_tags_as_the_predictor(tmp_path, pipeline, hidden_act, do_lower_case):
    """And so it does after a way there and back, through Google's layout."""
    write_network(tmp_path, hidden_act, do_lower_case)
    rows = [
        {"words": text.split(), "tags": [TAGS[len(word) % 3] for word in text.split()]}
        for text in TEXTS
    ]
    for name in ("train", "dev"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    flags = {"text_a_column": None, "label_column": None, "task_kind": "tagging"}
    run = train(tmp_path, do_lower_case, **flags)
    convert(run, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "tf1")
    convert(tmp_path / "tf1", tmp_path / "back")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert "problem_type" not in config
    predictor = Predictor(str(run))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), do_lower_case)
    texts = [text for text in TEXTS if len(tokenizer.tokenize(text)) <= LENGTH - 2]
    assert len(texts) > 3
    expected = predictor.predict(texts)["probabilities"]
    for folder in ("hf", "back"):
        answers = pipeline(
            "token-classification",
            tmp_path / folder,
            texts,
            aggregation_strategy="none",
            ignore_labels=[],
        )
        for text, found, rows in zip(texts, answers, expected, strict=True):
            by_place = {each["index"]: each for each in found}
            place = 1  # after [CLS]
            for word, row in zip(text.split(), rows, strict=True):
                assert by_place[place]["entity"] == predictor.labels[row.argmax()]
                assert by_place[place]["score"] == pytest.approx(row.max(), abs=1e-5)
                place += len(tokenizer.tokenize(word))
    # The other side's weights are a start for tagging here, though they lack the pooler.
    run = train(tmp_path, do_lower_case, **flags, init_checkpoint=tmp_path / "hf",
                output_dir=tmp_path / "again", learning_rate=1e-9)  # fmt: skip
    again = Predictor(str(run)).predict(texts)["probabilities"]
    for rows, others in zip(expected, again, strict=True):
        np.testing.assert_allclose(rows, others, atol=1e-5)


def test_a_pretraining_run_fills_masks(tmp_path, pipeline):
    """A run on one's own records, which brings its vocabulary along."""
    write_network(tmp_path, "gelu", do_lower_case=False)
    vocab_file = str(tmp_path / "vocab.txt")
    write_pretraining_records(
        [list(TEXTS)] * 4,
        FullTokenizer(vocab_file, do_lower_case=False),
        vocab_file,
        [str(tmp_path / "train.tfrecord")],
        CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2),
        masking="static",
    )
    flags = pretraining_flags(tmp_path, tmp_path / "run", use_tpu=None, num_train_steps=4)
    assert run_pretraining.main(["run_pretraining.py", *flags, "--do_train"]) == 0
    (tmp_path / "vocab.txt").unlink()
    convert(tmp_path / "run", tmp_path / "hf")

    source = open_source(str(tmp_path / "run"))
    tokenizer = FullTokenizer(source.vocab_file, do_lower_case=False)
    assert source.do_lower_case is False
    sides = (("The quick", "fox"), ("Größe und", ": 1,234"), ("", " dollars" * 30))
    texts = [f"{before} [MASK] {after}" for before, after in sides]
    top = 5
    options = {"top_k": top, "tokenizer_kwargs": {"truncation": True}}
    answers = pipeline("fill-mask", tmp_path / "hf", texts, **options)
    for (before, after), found in zip(sides, answers, strict=True):
        before = tokenizer.encode(before)
        ids = [tokenizer.cls_id, *before, tokenizer.mask_id, *tokenizer.encode(after)][:15]
        ids = np.array([[*ids, tokenizer.sep_id]], np.int32)
        batch = {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}
        outputs = weights.logits_of(source.config, fixtures.weights_of(source), batch)
        scores = np.exp(outputs["masked_lm_logits"][0, len(before) + 1].astype(np.float64))
        scores /= scores.sum()
        best = np.argsort(-scores)[:top]
        assert [each["token"] for each in found] == best.tolist()
        np.testing.assert_allclose([each["score"] for each in found], scores[best], atol=1e-6)


@pytest.mark.parametrize(
    "meaning",
    [
        {"problem_type": "single_label_classification"},
        {"problem_type": "multi_label_classification"},
        {"problem_type": None, "id2label": {"0": "b", "1": "LABEL_1", "2": "a"}},
    ],
    ids=lambda meaning: str(meaning["problem_type"]),
)
def test_a_model_of_transformers_answers_the_same_after_a_way_there_and_back(
    tmp_path, pipeline, meaning
):
    fixtures.transformers("classifier", tmp_path / "model", "gelu")
    path = tmp_path / "model" / "config.json"
    values = {**json.loads(path.read_text()), **meaning}
    values["label2id"] = {label: int(number) for number, label in values["id2label"].items()}
    path.write_text(json.dumps(values))
    convert(tmp_path / "model", tmp_path / "tf1")
    convert(tmp_path / "tf1", tmp_path / "back")
    texts = ["word1 word2", "word3 Word30 none", "word7 " * 40]
    before, after = (
        pipeline(
            "text-classification",
            tmp_path / name,
            texts,
            top_k=None,
            truncation=True,
            max_length=POSITIONS,  # transformers' own directory does not say it
        )
        for name in ("model", "back")
    )
    assert_same(as_answers(after), as_answers(before))
