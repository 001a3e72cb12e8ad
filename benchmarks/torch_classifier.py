"""Fine-tuning of a classifier and its predictions in torch, for `benchmarks.fine_tuning_speed`.

Each batch is as long as its longest text, as transformers' DataCollatorWithPadding makes it. The
texts of a batch are chosen at random, or "grouped": texts of like length together, in the order of
the Trainer's `train_sampling_strategy="group_by_length"`, which was `group_by_length=True` before
transformers 5. This module only needs torch and transformers.

    python -m benchmarks.torch_classifier DIRECTORY PRECISION ORDER STEPS WARMUP BATCH

prints the times as JSON. DIRECTORY has `bert_config.json`, and `texts.npz` with `train_ids`,
`predict_ids` (int32 [examples, tokens], 0 after the last token) and `train_labels`.
"""

import json
import os
import sys
import time

from benchmarks import torch_bert

ORDERS = ("shuffled", "grouped")
GROUP = 50  # The Trainer sorts the texts of so many batches by their length.
_WARMUP = 2  # batches of predictions that are computed once before they are timed


def measure(
    directory: str, precision: str, order: str, steps: int, warmup: int, batch: int
) -> dict[str, float]:
    """Trains some steps after `warmup` others, and predicts.

    Of grouped batches, whose lengths differ, all are timed. It returns `train_secs`, of a step, and
    `predict_rate`, texts per second.
    """
    import numpy as np  # transformers depends on it
    import torch
    import transformers
    from transformers.trainer_pt_utils import get_length_grouped_indices

    with open(os.path.join(directory, "bert_config.json"), encoding="utf-8") as reader:
        sizes = json.load(reader)
    arrays = dict(np.load(os.path.join(directory, "texts.npz")))
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(torch_bert.config_of(sizes))
    model = model.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, eps=1e-6, fused=True)

    def logits_of(ids):
        longest = (ids != 0).sum(axis=1).max()
        ids = torch.from_numpy(ids[:, :longest]).long()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            return model(input_ids=ids, attention_mask=(ids != 0).long()).logits.float()

    def step(numbers):
        loss = torch.nn.functional.cross_entropy(
            logits_of(arrays["train_ids"][numbers]),
            torch.from_numpy(arrays["train_labels"][numbers]).long(),
        )
        torch_bert.update(model, optimizer, loss)
        return float(loss.detach())

    def batches_of(texts):
        if order == "shuffled":
            numbers = torch.randperm(len(texts)).tolist()
        else:
            numbers = get_length_grouped_indices((texts != 0).sum(axis=1), batch, GROUP)
        return np.array_split(numbers, range(batch, len(texts), batch))

    train = batches_of(arrays["train_ids"])
    model.train()
    _secs_of(step, _spread(train, warmup))
    timed = train if order == "grouped" else train[:steps]
    train_secs = _secs_of(step, timed) / len(timed)
    texts = arrays["predict_ids"]
    predict = batches_of(texts)
    model.eval()
    with torch.inference_mode():

        def answer(numbers):
            return logits_of(texts[numbers]).numpy()

        _secs_of(answer, _spread(predict, _WARMUP))
        predict_secs = _secs_of(answer, predict)
    return {"train_secs": train_secs, "predict_rate": len(texts) / predict_secs}


def _spread(batches, count):
    """Returns so many of the batches, at equal distances."""
    return [batches[(2 * number + 1) * len(batches) // (2 * count)] for number in range(count)]


def _secs_of(function, batches):
    start = time.perf_counter()
    for batch in batches:
        function(batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:4], *map(int, sys.argv[4:]))))
