"""What TensorFlow 1.15 writes and reads: the oracle of these tests. For Python 3.7, TF 1.15.5:

    python tests/interchange/tf115_oracle.py make tests/interchange/data/tf1
    python tests/interchange/tf115_oracle.py list CHECKPOINT LIST.json

`make` writes a tiny random checkpoint as google-research/bert trains them, slots and global
step included, under that code's names. `list` restores a checkpoint's variables in a session, and
writes name -> [shape, float sum].
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

CONFIG = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}


def names_and_shapes():
    hidden, inner, vocab = (CONFIG[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    dense = {
        "attention/self/query": (hidden, hidden),
        "attention/self/key": (hidden, hidden),
        "attention/self/value": (hidden, hidden),
        "attention/output/dense": (hidden, hidden),
        "intermediate/dense": (hidden, inner),
        "output/dense": (inner, hidden),
    }
    yield "bert/embeddings/word_embeddings", [vocab, hidden]
    yield "bert/embeddings/token_type_embeddings", [2, hidden]
    yield "bert/embeddings/position_embeddings", [CONFIG["max_position_embeddings"], hidden]
    norms = ["bert/embeddings", "cls/predictions/transform"]
    denses = {"bert/pooler/dense": (hidden,) * 2, "cls/predictions/transform/dense": (hidden,) * 2}
    for layer in range(CONFIG["num_hidden_layers"]):
        scope = "bert/encoder/layer_%d/" % layer  # noqa: UP031
        norms += [scope + "attention/output", scope + "output"]
        denses.update({scope + name: shape for name, shape in dense.items()})
    for scope, shape in denses.items():
        yield scope + "/kernel", list(shape)
        yield scope + "/bias", [shape[1]]
    for scope in norms:
        yield scope + "/LayerNorm/beta", [hidden]
        yield scope + "/LayerNorm/gamma", [hidden]
    yield "cls/predictions/output_bias", [vocab]
    yield "cls/seq_relationship/output_weights", [2, hidden]
    yield "cls/seq_relationship/output_bias", [2]


def make(folder):
    random = np.random.RandomState(3)
    for name, shape in names_and_shapes():
        value = random.normal(1.0 if name.endswith("gamma") else 0.0, 0.3, shape)
        tf.get_variable(name, initializer=value.astype(np.float32))
        for slot in ("adam_m", "adam_v"):
            tf.get_variable(name + "/" + slot, initializer=np.zeros(shape, np.float32))
    tf.train.create_global_step()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        saver.save(session, os.path.join(folder, "bert_model.ckpt"), write_meta_graph=False)
    os.remove(os.path.join(folder, "checkpoint"))
    with open(os.path.join(folder, "bert_config.json"), "w") as writer:
        json.dump(CONFIG, writer, indent=2)
    with open(os.path.join(folder, "vocab.txt"), "w") as writer:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        writer.write("\n".join(words + ["Word%d" % i for i in range(35)]) + "\n")  # noqa: UP031


def list_variables(prefix):
    found = {}
    variables = [tf.get_variable(n, shape) for n, shape in tf.train.list_variables(prefix)]
    with tf.Session() as session:
        tf.train.Saver(variables).restore(session, prefix)
        for variable in variables:
            total = float(np.sum(session.run(variable), dtype=np.float64))
            found[variable.op.name] = [variable.shape.as_list(), total]
    return found


if __name__ == "__main__":
    if sys.argv[1] == "make":
        os.makedirs(sys.argv[2])
        make(sys.argv[2])
    else:
        with open(sys.argv[3], "w") as output:
            json.dump(list_variables(sys.argv[2]), output)
