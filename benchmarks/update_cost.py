"""What a step does for its weights alone, beside a copy of the weights by all threads.

    python -m benchmarks.update_cost [bfloat16] [float32]

That is the update of BERT-base on given gradients, in the precision in which a network computes
them: they are clipped and applied. It runs in a session, as with --use_tpu, in turns with a copy of
as many bytes as the weights have. Medians count, also in results/update_cost.json.
"""

import concurrent.futures
import itertools
import json
import os
import statistics
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import main_job
from bert_estimator import modeling
from bert_estimator.bert_config import BertConfig
from bert_estimator.model_fns.update import UpdateRule
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.system import memory

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results", "update_cost.json")
_ROUNDS, _WARMUP = 15, 2


def measure(precision: str, optimizer: str) -> dict[str, float]:
    """Returns the seconds of an update and of a copy, and their ratio."""

    def loss_fn(features, first_row):
        losses = []
        for variable in tf.trainable_variables():
            name = f"gradient/{variable.op.name}"
            given = tf.get_variable(name, variable.shape, precision, trainable=False).read_value()

            @tf.custom_gradient
            def first_weight(weights, given=given):
                return weights[(0,) * given.shape.rank], lambda _: given

            losses.append(tf.cast(first_weight(tf.cast(variable, precision)), tf.float32))
        return tf.add_n(losses), {}

    with tf.Graph().as_default(), tf.Session() as session:
        features = {"input_ids": tf.zeros([1, 8], tf.int32)}
        with tf.variable_scope("", use_resource=True):
            modeling.BertModel(BertConfig.preset("base", 30522), False, *features.values())
            rule = UpdateRule(optimizer, WarmupPolynomialDecay(1e-5, 10**6, 0))
            update = rule.train_spec(lambda step: loss_fn, features).train_op
        session.run(tf.global_variables_initializer())
        threads = os.cpu_count()
        size = sum(v.shape.num_elements() for v in tf.trainable_variables()) // threads
        pairs = [(np.zeros(size, np.float32), np.ones(size, np.float32)) for _ in range(threads)]
        pool = concurrent.futures.ThreadPoolExecutor(threads)
        timed = session.make_callable(update), lambda: [*pool.map(lambda p: np.copyto(*p), pairs)]
        secs = [], []
        for number in range(2 * (_WARMUP + _ROUNDS)):
            start = time.perf_counter()
            timed[number % 2]()
            secs[number % 2].append(time.perf_counter() - start)
    update, copy = (statistics.median(each[_WARMUP:]) for each in secs)
    return {"update_secs": round(update, 4), "copy_secs": round(copy, 4), "copies": update / copy}


def main(precisions: list[str]) -> None:
    memory.keep_freed_memory()
    rows = []
    for precision, optimizer in itertools.product(precisions, ("adamw", "lamb")):
        rows.append({"precision": precision, "optimizer": optimizer})
        rows[-1].update(measure(precision, optimizer))
        print(rows[-1], flush=True)
    with open(RESULTS, "w", encoding="utf-8") as writer:
        json.dump({"machine": main_job.machine(), "rows": rows}, writer, indent=1)
        writer.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["bfloat16", "float32"])
