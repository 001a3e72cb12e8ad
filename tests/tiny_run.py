"""What the tests of whole runs share: a tiny network, records for it, and what a run leaves."""

import json
import os

import tensorflow.compat.v1 as tf

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.instances import CreationSettings
from input_pipelines.pretraining_records import write_pretraining_records


def words(number):
    return [f"w{i}" for i in range(number)]


def bert_config(number_of_words, **changes):
    """A network of one narrow layer over these words."""
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


def write_records(path, name, vocabulary, num_sentences=5, max_predictions_per_seq=4):
    """Writes `vocab.txt` and pretraining records of 16 tokens into a directory."""
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
            max_seq_length=16, max_predictions_per_seq=max_predictions_per_seq, dupe_factor=3
        ),
    )


def metrics_of(output_dir):
    """The records of metrics.jsonl."""
    with open(os.path.join(output_dir, "metrics.jsonl"), encoding="utf-8") as reader:
        return [json.loads(line) for line in reader]


def variables_of(output_dir, step):
    """All variables of a checkpoint: weights, slots, the step."""
    reader = tf.train.load_checkpoint(os.path.join(output_dir, f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
