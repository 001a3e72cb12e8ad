"""BERT's training step in torch: transformers' BertForPreTraining, for the benchmarks.

It does the same work as an exported program: the same batches, dropout, AdamW, and clipping by the
global norm, and only the masked positions go through the vocabulary's matrix. This module only
needs torch and transformers.

    python -m benchmarks.torch_bert DIRECTORY STEPS PRECISION ROWS

times it on the CPU, and prints the result as JSON. ROWS is "padded", or "joined": all texts follow
each other and are cut into full rows, in which texts see each other, as transformers' run_mlm.py
does by default.
"""

import json
import os
import resource
import sys
import time
from typing import Any

# What is computed in -> the variants. Autocast computes in bfloat16 with weights in float32; in the
# others, all are in that dtype, weights and optimizer state included.
VARIANTS = {"float32": ["float32"], "bfloat16": ["autocast", "bfloat16"]}
_WARMUP = 3  # steps before the timed ones


def time_step(
    directory: str | None,
    steps: int,
    tpu_name: str,
    compiled: bool = False,
    precision: str = "autocast",
    is_joined: bool = False,
) -> dict[str, Any]:
    """Times a training step; without a directory, only names the device.

    Args:
      directory: a program that `gpu.export` made, for its batches and its network.
      tpu_name: "gpu", or "rehearse:1" for the CPU.
      precision: one of the `VARIANTS`.
      is_joined: whether the texts of the batches are joined and cut into full rows.

    It returns `device` and `versions`, and with a directory `secs` and `cpu_secs` (of as many
    tokens as a batch has in the mean), `first_loss` and `last_loss`. A RuntimeError says what to do
    if torch is not installed, or does not find a GPU.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise RuntimeError(
            f"{sys.executable}: {error}. Name a Python that has torch and transformers with "
            "--torch_python, or skip torch with --sides exported"
        ) from None
    kind = "cpu" if tpu_name.startswith("rehearse") else "cuda"
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} of {sys.executable} does not find a CUDA GPU: run this on "
            "a machine with a GPU, with torch's build for it, or skip torch with --sides exported"
        )
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    device = "cpu" if kind == "cpu" else torch.cuda.get_device_name()
    result = {"device": device, "versions": versions}
    if not directory:
        return result
    network, inputs = _read_program(directory)
    tokens = inputs["input_mask"].sum()
    inputs = _joined(inputs) if is_joined else inputs
    share = tokens / inputs["input_mask"].sum()  # rows that joined texts do not fill are left out
    inputs = {name: torch.from_numpy(array).to(kind).long() for name, array in inputs.items()}
    torch.manual_seed(1)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = transformers.BertForPreTraining(config_of(network)).to(kind, dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, eps=1e-6, fused=True)
    loss_of = _loss_function(model, kind, autocast=precision == "autocast")
    loss_of = torch.compile(loss_of) if compiled else loss_of
    batches = [
        dict(zip(inputs, batch, strict=True)) for batch in zip(*inputs.values(), strict=True)
    ]
    losses = []
    for number in range(_WARMUP + steps):
        if number == _WARMUP:
            float(losses[-1])  # waits for the steps before it
            start, cpu_start = time.perf_counter(), _cpu_secs()
        loss = loss_of(batches[number % len(batches)])
        update(model, optimizer, loss)
        losses.append(loss.detach())
    last = float(losses[-1])
    return {
        **result,
        "secs": float((time.perf_counter() - start) / steps * share),
        "cpu_secs": float((_cpu_secs() - cpu_start) / steps * share),
        "first_loss": float(losses[0]),
        "last_loss": last,
    }


def config_of(sizes: dict[str, Any]) -> Any:
    """Returns the configuration of a network of the presets, for transformers."""
    import transformers

    # The presets' GELU is the tanh form, which has one kernel under this name.
    sizes = {**sizes, "hidden_act": "gelu_pytorch_tanh", "attn_implementation": "sdpa"}
    return transformers.BertConfig(**sizes)


def update(model: Any, optimizer: Any, loss: Any) -> None:
    """Updates a model by the gradients of a loss, clipped by their global norm."""
    import torch

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _cpu_secs():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _read_program(directory):
    """Returns (the sizes of a program's network, its batches: name -> int32 array)."""
    import numpy as np  # transformers depends on it

    with open(os.path.join(directory, "benchmark.json"), encoding="utf-8") as reader:
        network = json.load(reader)["bert_config"]
    with np.load(os.path.join(directory, "batches.npz")) as arrays:
        return network, {name: array for name, array in arrays.items() if array.dtype == np.int32}


def _joined(inputs):
    """Returns batches of full rows with the same tokens, of which the same share is masked."""
    import numpy as np

    num_batches, _, length = inputs["input_ids"].shape
    tokens = inputs["input_ids"][inputs["input_mask"] != 0]
    rows = len(tokens) // (num_batches * length)
    ids = tokens[: num_batches * rows * length].reshape(num_batches, rows, length)
    num_masked = inputs["masked_lm_positions"].shape[-1]
    positions = np.broadcast_to(
        np.linspace(0, length - 1, num_masked, dtype=np.int32), (num_batches, rows, num_masked)
    )
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": positions,
        "masked_lm_ids": np.take_along_axis(ids, positions, axis=2),
        "next_sentence_labels": np.zeros([num_batches, rows, 1], np.int32),
    }


def _loss_function(model, kind, autocast):
    """Returns the function of a batch that gives the loss of masked words and next sentences."""
    import torch

    cross_entropy = torch.nn.functional.cross_entropy

    def loss_of(batch):
        with torch.autocast(kind, torch.bfloat16, enabled=autocast):
            output = model.bert(
                batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
            )
            hidden, positions = output.last_hidden_state, batch["masked_lm_positions"][:, :, None]
            hidden = hidden.gather(1, positions.expand(-1, -1, hidden.shape[-1]))
            words, next_sentence = model.cls(hidden, output.pooler_output)
        labels = batch["masked_lm_ids"].flatten()  # unused predictions are 0, [PAD]
        loss = cross_entropy(words.flatten(0, 1).float(), labels, ignore_index=0)
        return loss + cross_entropy(next_sentence.float(), batch["next_sentence_labels"].flatten())

    return loss_of


if __name__ == "__main__":
    _directory, _steps, _precision, _rows = sys.argv[1:]
    _timed = time_step(
        _directory, int(_steps), "rehearse:1", precision=_precision, is_joined=_rows == "joined"
    )
    print(json.dumps(_timed))
