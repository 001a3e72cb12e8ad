"""A tiny network with data and flags, and readers of a run's results, for tests of whole runs."""

import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records.record_reader import RecordFiles


def words(number):
    return [f"w{i}" for i in range(number)]


def bert_config(number_of_words, **changes):
    """Returns the configuration of a network with one narrow layer over these words."""
    return {
        "vocab_size": number_of_words + len(SPECIAL_TOKENS),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "hidden_act": "relu",  # GELU is compiled anew in every run, for seconds
        **changes,
    }


def write_records(
    path, name, vocabulary, num_sentences=5, max_predictions_per_seq=4, max_seq_length=16, **others
):
    """Writes `vocab.txt` and pretraining records into a directory; `others` are settings, too."""
    vocab_file = str(path / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *vocabulary], vocab_file)
    documents = [
        [
            " ".join(vocabulary[(7 * d + 3 * s + w) % len(vocabulary)] for w in range(4))
            for s in range(num_sentences)
        ]
        for d in range(12)
    ]
    write_pretraining_records(
        documents,
        FullTokenizer(vocab_file),
        vocab_file,
        [str(path / name)],
        CreationSettings(
            max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq,
            dupe_factor=3,
            **others,
        ),
        masking="static",
    )


def copy_records(source, target, changes):
    """Copies records without a manifest; `changes` has functions of features by record number."""
    records = RecordFiles([str(source)])
    with tf.io.TFRecordWriter(str(target)) as writer:
        for number in range(records.num_records):
            example = tf.train.Example.FromString(records.read(number))
            if number in changes:
                changes[number](example.features.feature)
            writer.write(example.SerializeToString())


def pairs(number, seed):
    """Yields pairs of texts over `words(30)`, labelled by whether the first is below w15."""
    generator = np.random.default_rng(seed)
    for _ in range(number):
        is_low = generator.integers(2)
        first = generator.integers(15, size=3) + 15 * (1 - is_low)
        second = generator.integers(30, size=3)
        texts = (" ".join(f"w{word}" for word in words) for words in (first, second))
        yield *texts, "low" if is_low else "high"


def write_pairs(path, rows):
    """Writes rows of `pairs` into a TSV file."""
    lines = ["sentence1\tsentence2\tlabel", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def write_tagged(path, number, seed):
    """Writes sentences over `words(30)` as CoNLL. Each has an entity: one of w0 to w3, then one of
    w4 to w7."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        numbers = generator.integers(8, 30, size=generator.integers(4, 20))
        start = generator.integers(len(numbers) - 2)
        numbers[start : start + 2] = generator.integers(4, size=2) + [0, 4]
        for place, word in enumerate(numbers):
            tag = "B-LOW" if place == start else "I-LOW" if place == start + 1 else "O"
            lines.append(f"w{word} NN {tag}\n")
        lines.append("\n")
    path.write_text("".join(lines))


def tagging_flags(data, output_dir, **changes):
    """Does the same as `classifier_flags` for tagging, with `train.conll` and `dev.conll`."""
    files = {"train_file": data / "train.conll", "eval_file": data / "dev.conll"}
    return classifier_flags(data, output_dir, **{"task_kind": "tagging", **files, **changes})


def questions(number, seed, impossible=0):
    """Returns SQuAD's questions "wI what", for the word after wI; the last have no answer."""
    generator = np.random.default_rng(seed)
    made = []
    for i in range(number):
        chosen = generator.permutation(28)[:9]
        asked, *context = (f"w{word}" for word in chosen)
        is_impossible = i >= number - impossible
        place = int(generator.integers(7))
        if not is_impossible:
            context[place] = asked
        text = " ".join(context)
        start = len(" ".join(context[: place + 1])) + 1
        answers = [{"text": context[place + 1], "answer_start": start}]
        question = {"id": f"q{i}", "question": f"{asked} what", "answers": answers}
        if is_impossible:
            question.update(answers=[], is_impossible=True)
        made.append((text, question))
    return made


def write_questions(path, made):
    """Writes what `questions` made into a file in SQuAD's layout."""
    paragraphs = [{"context": text, "qas": [question]} for text, question in made]
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))


def _short(data, output_dir):
    return {
        "bert_config_file": data / "bert_config.json",
        "output_dir": output_dir,
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "save_checkpoints_steps": 4,
        "iterations_per_loop": 2,
        "log_every_secs": 0,
        "use_tpu": True,
    }


def _flags(values):
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def squad_flags(data, output_dir, **changes):
    """Returns the flags of a short run_squad.py, with `train.json`, `dev.json` and `vocab.txt`."""
    values = {
        **_short(data, output_dir),
        "train_file": data / "train.json",
        "eval_file": data / "dev.json",
        "vocab_file": data / "vocab.txt",
        "max_seq_length": 16,
        "max_query_length": 3,
        "doc_stride": 4,
        "num_train_epochs": 1,
        **changes,
    }
    return _flags(values)


def pretraining_flags(data, output_dir, **changes):
    """Returns the flags of a short run_pretraining.py; a change to None leaves a flag out."""
    values = {
        **_short(data, output_dir),
        "input_file": data / "train.tfrecord",
        "max_seq_length": 16,
        "max_predictions_per_seq": 4,
        "num_train_steps": 10,
        "num_warmup_steps": 2,
        "optimizer": "lamb",
        **changes,
    }
    return _flags(values)


def classifier_flags(data, output_dir, **changes):
    """Does the same for run_classifier.py, with `train.tsv`, `dev.tsv` and `vocab.txt`."""
    values = {
        **_short(data, output_dir),
        "train_file": data / "train.tsv",
        "eval_file": data / "dev.tsv",
        "vocab_file": data / "vocab.txt",
        "max_seq_length": 10,
        "num_train_epochs": 1,
        **changes,
    }
    return _flags(values)


def steps_of(output_dir):
    """Returns the steps of the checkpoints in a directory."""
    names = os.listdir(output_dir)
    steps = [name[len("model.ckpt-") : -len(".index")] for name in names if name.endswith(".index")]
    return sorted(map(int, steps))


def training_metrics(output_dir):
    """Returns the log records of training, without timings."""
    return [without_timing(record) for record in metrics_of(output_dir) if "loss" in record]


def without_timing(record):
    """Returns a record of metrics.jsonl without timings."""
    timed = ("per_sec", "input_wait", "eta_secs")
    return {name: value for name, value in record.items() if not name.endswith(timed)}


def metrics_of(output_dir):
    """Returns the records of metrics.jsonl."""
    with open(os.path.join(output_dir, "metrics.jsonl"), encoding="utf-8") as reader:
        return [json.loads(line) for line in reader]


def sorted_metrics(output_dir):
    """Returns the records of metrics.jsonl without timings, in an order that a kill leaves."""
    records = map(without_timing, metrics_of(output_dir))
    return sorted(sorted((name, str(v)) for name, v in record.items()) for record in records)


def reports_of(eval_dir):
    """Returns what event files show of labels: a list of (step, {tag: array}), as written."""
    found = []
    for path in sorted(tf.io.gfile.glob(os.path.join(eval_dir, "events.*"))):
        for event in tf.train.summary_iterator(path):
            values = {
                value.tag: tf.make_ndarray(value.tensor)
                for value in event.summary.value
                if value.tag.startswith(("report/", "precision_recall/"))
            }
            if values:
                found.append((event.step, values))
    return found


def variables_of(output_dir, step):
    """Returns all variables of a checkpoint: weights, slots, the step."""
    reader = tf.train.load_checkpoint(os.path.join(output_dir, f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def go_back(folder, step=2):
    """Removes the checkpoints after a step, as if the run had been killed before the next one."""
    for path in folder.glob("model.ckpt-*"):
        if int(path.name.split("-")[1].split(".")[0]) > step:
            path.unlink()
    checkpoint = f"model.ckpt-{step}"
    names = f'model_checkpoint_path: "{checkpoint}"\nall_model_checkpoint_paths: "{checkpoint}"\n'
    (folder / "checkpoint").write_text(names)
