"""The models that the oracles of this directory wrote, changed copies of them, and the oracles."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import safetensors.numpy

from bert_estimator import tokenization
from bert_estimator.interchange import network_variables
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.hugging_face import weight_files
from bert_estimator.interchange.source import Source

HERE = pathlib.Path(__file__).parent.parent / "interchange"
DATA = HERE / "data"
BERTS = ("hf_pretraining", "hf_classifier", "hf_masked_lm", "hf_encoder")
HUGGING_FACE = (*BERTS, "hf_albert", "hf_electra")
TF1 = DATA / "tf1"

# A tokenizer.json as transformers 5 writes it, without its vocabulary.
_SINGLE = [
    {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}},
    {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
]
_SECOND = [
    {"Sequence": {"id": "B", "type_id": 1}},
    {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
]
TOKENIZER_JSON = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": _SINGLE,
        "pair": [*_SINGLE, *_SECOND],
    },
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {},
    },
}


def with_tokenizer_json(folder, **parts):
    """Writes a tokenizer.json of the directory's vocab.txt; `parts` update parts of it."""
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocab = {token: number for number, token in enumerate(tokens)}
    values = {**TOKENIZER_JSON, "model": {**TOKENIZER_JSON["model"], "vocab": vocab}}
    for name, part in parts.items():
        values[name] = {**values.get(name, {}), **part} if isinstance(part, dict) else part
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")


def tensors_of(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def changed(tmp_path, model, change_tensors=None, **config):
    """A copy of a Hugging Face model, some of its tensors and its configuration changed."""
    folder = tmp_path / "changed"
    shutil.copytree(DATA / model, folder)
    values = {**json.loads((folder / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps(values))
    if change_tensors is not None:
        tensors = change_tensors(tensors_of(folder))
        tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def weights_of(source):
    return {name: source.read(name) for name in source.shapes}


def random_weights(config, heads=(), num_labels=2, scale=0.3):
    """Returns weights of a network and of its heads, large enough that every part matters."""
    shapes = network_variables.encoder_shapes(config)
    for head in heads:
        shapes |= network_variables.head_shapes(config, num_labels)[head]
    draw = np.random.default_rng(2).normal
    return {n: np.float32(draw(float(n.endswith("gamma")), scale, s)) for n, s in shapes.items()}


def write_hugging_face(folder, source, weights=None):
    """Writes a source, or other weights of its network, in Hugging Face's format."""
    weights = weights_of(source) if weights is None else weights
    tokenizer = tokenization.open_tokenizer(source.vocab_file, None)
    weight_files.write(str(folder), source, weights, tokenizer)


def write_tf1(folder, config, weights, **facts):
    """Writes a checkpoint as it is published; `facts` are fields of `Source`."""
    source = Source("here", "tf1", {}, weights.get, config=config, **facts)
    tf1_checkpoint.write(str(folder), source, weights)


needs_transformers = pytest.mark.skipif(
    not os.environ.get("TRANSFORMERS_PYTHON"),
    reason="TRANSFORMERS_PYTHON names no Python with torch and transformers",
)
needs_tensorflow_1 = pytest.mark.skipif(
    not os.environ.get("TF115_PYTHON"), reason="TF115_PYTHON names no TF 1.15"
)


def transformers(*arguments):
    """Runs a command of transformers_oracle.py."""
    oracle = HERE / "transformers_oracle.py"
    subprocess.run([os.environ["TRANSFORMERS_PYTHON"], oracle, *map(str, arguments)], check=True)


@contextlib.contextmanager
def transformers_answering(command):
    """Starts transformers_oracle.py once; gives a function that answers a request, a dict."""
    oracle = [os.environ["TRANSFORMERS_PYTHON"], HERE / "transformers_oracle.py", command, "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(oracle, stdin=pipe, stdout=pipe, text=True) as process:

        def answer(**request):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield answer
        process.stdin.close()


def tensorflow_1(*arguments):
    """Runs a command of tf115_oracle.py."""
    # TensorFlow 2 leaves a variable behind that would make 1.15 behave like it.
    env = {name: value for name, value in os.environ.items() if name != "TF2_BEHAVIOR"}
    command = [os.environ["TF115_PYTHON"], HERE / "tf115_oracle.py", *map(str, arguments)]
    subprocess.run(command, check=True, env=env)
