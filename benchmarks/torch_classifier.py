"""Fine-tuning of a classifier and its predictions in torch, for `benchmarks.fine_tuning_speed`.

Each batch is as long as its longest text, as transformers' DataCollatorWithPadding makes it. This
module only needs torch and transformers.

    python -m benchmarks.torch_classifier DIRECTORY PRECISION WARMUP BATCH

prints the times as JSON. DIRECTORY has `bert_config.json`, and `texts.npz` with `train_ids`,
`predict_ids` (int32 [examples, tokens], 0 after the last token) and `train_labels`.
"""

import json
import os
import sys
import time

# What is computed in -> the variants. Autocast computes in bfloat16 with weights in float32.
PRECISIONS = {"float32": ["float32"], "bfloat16": ["autocast", "bfloat16"]}
WARMUP = 2  # batches of predictions that are not timed


def measure(directory: str, precision: str, warmup: int, batch: int) -> dict[str, float]:
    """Trains an epoch, and predicts.

    Args:
      directory: see the top of this module.
      precision: a variant of `PRECISIONS`.
      warmup: how many steps are not timed.
      batch: examples of a batch.

    Returns:
      A dict of `train_secs`, of all timed steps, and `predict_rate`, texts per second.
    """
    import numpy as np  # transformers depends on it
    import torch
    import transformers

    with open(os.path.join(directory, "bert_config.json"), encoding="utf-8") as reader:
        sizes = json.load(reader)
    # The presets' GELU is the tanh form, which has one kernel under this name.
    sizes = {**sizes, "hidden_act": "gelu_pytorch_tanh", "attn_implementation": "sdpa"}
    arrays = dict(np.load(os.path.join(directory, "texts.npz")))
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    if precision == "bfloat16":
        model = model.to(torch.bfloat16)
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
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    order = np.random.default_rng(1).permutation(len(arrays["train_ids"]))
    model.train()
    train_secs = _secs_of(step, np.split(order, len(order) // batch), warmup)
    texts = arrays["predict_ids"]
    model.eval()
    with torch.inference_mode():
        predict_secs = _secs_of(lambda ids: logits_of(ids).numpy(), _parts(texts, batch), WARMUP)
    return {
        "train_secs": train_secs,
        "predict_rate": (len(texts) - WARMUP * batch) / predict_secs,
    }


def _parts(texts, batch):
    return [texts[first : first + batch] for first in range(0, len(texts), batch)]


def _secs_of(function, batches, warmup):
    """Returns the seconds of calls for all batches after the first `warmup`."""
    for number, batch in enumerate(batches):
        if number == warmup:
            start = time.perf_counter()
        function(batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:3], *map(int, sys.argv[3:]))))
