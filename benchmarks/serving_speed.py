"""Requests to an exported model that takes text: their rate, and whether memory grows.

    python -m benchmarks.serving_speed runs/classifier

RUN is a run of run_classifier.py --do_export for single texts. A process that knows TensorFlow
alone loads its SavedModel and answers 640 texts, 16 times over, in requests of one text, then in
requests of 32; its memory is read after every tenth of them. If the environment variable
TRANSFORMERS_PYTHON names a Python with torch and transformers, a pipeline there answers the same
texts with the same weights, which `bert_estimator.interchange` converts; and if that Python has
onnxruntime and onnxscript, onnxruntime does, after transformers' tokenizer. The probabilities have
to be equal. In this Python, if onnxruntime and the package tokenizers are installed, they answer
with the ONNX model that `bert_estimator.interchange` writes, whose probabilities have to be equal,
too; and then with its products rounded to int8. The last line is JSON.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile

from benchmarks.main_job import machine
from bert_estimator.command_line.run_directory import recorded_settings
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.interchange.onnx import runtime
from bert_estimator.serving import exported_model
from input_pipelines.embedded import embedded_corpus

BATCHES = (1, 32)
SIDES = ("tensorflow", "onnx", "onnx_int8", "transformers", "onnxruntime")
_TEXTS = 640
# The memory of the others need not be watched, and their rates need fewer passes over the texts.
_SHARE_OF_OTHERS = 8

# What a process runs: `_BEGIN`; the code of its side, which defines `answer`, of texts, and `said`,
# of what that returns: labels and their probabilities; and `_END`.
_BEGIN = """
import json, os, sys, time
import numpy as np
model, path, passes, batches = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
texts = json.load(open(path))

def resident():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6

def measured(batch):
    parts = [texts[i : i + batch] for i in range(0, len(texts) - batch + 1, batch)]
    number = passes * len(parts)
    for part in parts[:4]:  # what is compiled or allocated once is not measured
        answer(part)
    memory, start = [], time.perf_counter()
    for i in range(number):
        answer(parts[i % len(parts)])
        if (i + 1) % max(1, number // 10) == 0:
            memory.append(resident())
    secs = time.perf_counter() - start
    return {"requests": number, "requests_per_sec": number / secs, "megabytes": memory}

def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
"""

_END = """
result = {str(batch): measured(batch) for batch in batches}
result["labels"], result["probabilities"] = said(answer(texts[:64]))
assert not [name for name in sys.modules if name.startswith("bert_estimator")]
print(json.dumps(result))
"""

_TENSORFLOW = """
import tensorflow as tf
signature = tf.saved_model.load(model).signatures["serving_default"]

def answer(part):
    found = signature(text_a=tf.constant(part))
    return found["label"].numpy(), found["probabilities"].numpy()

def said(found):
    return [label.decode() for label in found[0]], found[1].max(axis=-1).tolist()
"""

_TRANSFORMERS = """
import transformers
transformers.logging.set_verbosity_error()
pipe = transformers.pipeline("text-classification", model, device="cpu")

def answer(part):
    return pipe(part, batch_size=len(part), truncation=True)

def said(found):
    return [each["label"] for each in found], [each["score"] for each in found]
"""

_ONNXRUNTIME = """
try:
    import onnxruntime, onnxscript
except ImportError:
    print("null")
    sys.exit()
import torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(model)
network = transformers.AutoModelForSequenceClassification.from_pretrained(model)
example = dict(tokenizer(texts[:2], return_tensors="pt", padding=True))
axes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("length", max=tokenizer.model_max_length)}
torch.onnx.export(
    network.eval(), (), "model.onnx", kwargs=example, dynamic_shapes=dict.fromkeys(example, axes),
    output_names=["logits"], verbose=False,
)
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])

def answer(part):
    inputs = tokenizer(part, return_tensors="np", padding=True, truncation=True)
    return softmax(session.run(["logits"], {name: inputs[name] for name in example})[0])

def said(found):
    labels = [network.config.id2label[number] for number in found.argmax(axis=-1)]
    return labels, found.max(axis=-1).tolist()
"""

_ONNX = """
try:
    import onnxruntime, tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
except Exception:  # tokenizers has no class of its own for a missing file
    print("null")
    sys.exit()
task = json.load(open(os.path.join(model, "task.json")))
tokenizer.enable_truncation(task["max_seq_length"])
tokenizer.enable_padding()
session = onnxruntime.InferenceSession(
    os.path.join(model, "model.onnx"), providers=["CPUExecutionProvider"]
)

def answer(part):
    encodings = tokenizer.encode_batch(part)
    inputs = {
        "input_ids": np.array([encoding.ids for encoding in encodings]),
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
        "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
    }
    return softmax(session.run(["logits"], inputs)[0])

def said(found):
    return [task["labels"][i] for i in found.argmax(axis=-1)], found.max(axis=-1).tolist()
"""


def texts_of(number: int) -> list[str]:
    """Returns sentences of the embedded corpus."""
    documents = embedded_corpus.load().held_out
    return [line for document in documents for line in document][:number]


def run_in(python: str, code: str, model: str, texts_file: str, passes: int) -> dict | None:
    """Returns what the code prints in a process of a Python, from a directory without this
    project."""
    arguments = [
        python,
        "-c",
        _BEGIN + code + _END,
        model,
        texts_file,
        str(passes),
        json.dumps(BATCHES),
    ]
    folder = os.path.dirname(texts_file)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = subprocess.run(arguments, check=True, cwd=folder, env=env, stdout=subprocess.PIPE)
    return json.loads(out.stdout.splitlines()[-1])


def measure(run: str, passes: int) -> dict:
    """Returns the figures of a run; exits if others' answers differ."""
    model = exported_model.find(os.path.abspath(run))
    if runtime.is_model(model):
        raise SystemExit(f"{run}: its newest export is an ONNX model; export a SavedModel again")
    task = exported_model.read_task(model)
    if task.kind != "classification" or task.is_pair:
        texts = "pairs of texts" if task.is_pair else "texts"
        raise SystemExit(f"{run}: is for {task.kind} of {texts}; give a run that classifies texts")
    if task.vocab_file.endswith(".model"):
        raise SystemExit(f"{run}: its SavedModel takes ids; give a run with a WordPiece vocabulary")
    with tempfile.TemporaryDirectory() as folder:
        texts_file = os.path.join(folder, "texts.json")
        with open(texts_file, "w", encoding="utf-8") as writer:
            json.dump(texts_of(_TEXTS), writer)
        ours = run_in(sys.executable, _TENSORFLOW, model, texts_file, passes)
        result = {"machine": machine(), "tensorflow": ours}
        share = max(1, passes // _SHARE_OF_OTHERS)
        for name, path in onnx_models(os.path.abspath(run), folder).items():
            if found := run_in(sys.executable, _ONNX, path, texts_file, share):
                result[name] = found
        is_exact = recorded_settings(run).get("precision") != "bfloat16"
        if "onnx" in result and is_exact:  # ONNX models are of float32
            _check_equal("onnx", ours, result["onnx"])
        python = os.environ.get("TRANSFORMERS_PYTHON")
        if python:
            target = converted(os.path.abspath(run), os.path.join(folder, "hf"))
            for name, code in (("transformers", _TRANSFORMERS), ("onnxruntime", _ONNXRUNTIME)):
                theirs = run_in(python, code, target, texts_file, share)
                if theirs is not None:
                    result[name] = theirs
                    _check_equal(name, ours, theirs)
    for answers in (result[name] for name in SIDES if name in result):
        for name in {"probabilities", "labels"} & set(answers):
            del answers[name]
    return result


def converted(run: str, target: str, *flags: str) -> str:
    """Converts a run into a directory for Hugging Face, or as the flags say; returns it."""
    if interchange.main(["interchange", run, target, *flags]):
        raise SystemExit(f"the run was not converted into {target}")
    return target


def onnx_models(run: str, folder: str) -> dict[str, str]:
    """Writes the ONNX models of a run into a folder; returns side -> the model's directory, which
    is empty if ONNX models cannot be run here."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
        return {}
    exact, rounded = (os.path.join(folder, name) for name in ("onnx", "onnx_int8"))
    shutil.copytree(converted(run, exact, "--to=onnx"), rounded)
    runtime.write_quantized(rounded)
    return {"onnx": exact, "onnx_int8": rounded}


def _check_equal(name, ours, theirs):
    pairs = zip(ours["probabilities"], theirs["probabilities"], strict=True)
    difference = max(abs(a - b) for a, b in pairs)
    if ours["labels"] != theirs["labels"] or difference > 1e-4:
        raise SystemExit(f"{name} answers differently, by up to {difference:g}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="use this run's directory, with its export")
    parser.add_argument("--passes", type=int, default=16, help="read the texts this often")
    arguments = parser.parse_args(argv)
    result = measure(arguments.run, arguments.passes)
    for name in SIDES:
        for batch in BATCHES:
            if measured := result.get(name, {}).get(str(batch)):
                rate, memory = measured["requests_per_sec"], measured["megabytes"]
                print(
                    f"{name}: {measured['requests']} requests of {batch}: {rate:.1f} requests/s, "
                    f"{rate * batch:.1f} texts/s; memory grew by {memory[-1] - memory[1]:.1f} MB"
                )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
