"""The four commands of docs/your_domain.md on networks of transformers, and back into it."""

import json

import fixtures
import numpy as np
import pytest
from commands import MAINS

from bert_estimator.interchange import open_source
from bert_estimator.interchange.weights import logits_of
from bert_estimator.serving.filler import Filler
from bert_estimator.serving.predictor import Predictor

pytestmark = [pytest.mark.slow, fixtures.needs_transformers]

# Own words are cut into these pieces, and others are whole in the vocabulary.
PIECES = {"word30": "tor", "word31": "##tion", "word32": "##ur", "word33": "lan", "word34": "##gur"}
OWN = ("tortion", "langur", "lanurtion")
SENTENCES = [
    " ".join(OWN[(s + w) % 3] if w % 3 == 1 else f"word{(7 * s + w) % 30}" for w in range(6))
    for s in range(60)
]
LENGTH = 16


@pytest.fixture(params=["hf_encoder", "hf_masked_lm"])
def start(request, tmp_path):
    """Has transformers write a tiny network, with a vocabulary that has pieces."""
    folder = tmp_path / "start"
    fixtures.transformers("again", fixtures.DATA / request.param, folder)
    vocabulary = (fixtures.DATA / request.param / "vocab.txt").read_text().split()
    lines = [PIECES.get(token, token) + "\n" for token in vocabulary]
    (folder / "vocab.txt").write_text("".join(lines))
    return folder


def run(name, *flags):
    assert MAINS[name]([name, *flags]) == 0


def transformers_logits(folder, batch, tmp_path):
    np.savez(tmp_path / "batch.npz", **batch)
    fixtures.transformers("logits", folder, tmp_path / "batch.npz", tmp_path / "logits.npz")
    with np.load(tmp_path / "logits.npz") as theirs:
        return dict(theirs)


def batch_of(tokenizer, texts):
    ids = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    rows = np.zeros([len(ids), LENGTH], np.int32)
    for row, own in zip(rows, ids, strict=True):
        row[: len(own)] = own
    return {"input_ids": rows, "input_mask": np.int32(rows > 0), "segment_ids": 0 * rows}


def check_logits(source, folder, batch, name, tmp_path):
    """Checks what transformers computes from a directory; what stands at padding is not defined."""
    ours = logits_of(source.config, fixtures.weights_of(source), batch)[name]
    theirs = transformers_logits(folder, batch, tmp_path)[name]
    real = batch["input_mask"] > 0 if ours.ndim == 3 else ...
    np.testing.assert_allclose(ours[real], theirs[real], rtol=0, atol=1e-5)


def test_a_network_of_transformers_learns_a_domain_and_goes_back(start, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(SENTENCES) + "\n")
    own, domain, task = (tmp_path / name for name in ("own", "domain", "task"))
    text = f"--input_file={tmp_path}/text.txt"
    run("vocabulary", f"--extend={start}", text, "--num_words=3", f"--output_dir={own}")
    tokenizer = open_source(str(own)).open_tokenizer()
    assert tokenizer.tokenize(SENTENCES[0]) == SENTENCES[0].split()
    records = tmp_path / "domain.tfrecord"
    run(
        "records", text, f"--output_file={records}", f"--vocab_file={own}", "--objective=mlm",
        "--masking_unit=word", f"--max_seq_length={LENGTH}", "--max_predictions_per_seq=4",
    )  # fmt: skip
    run(
        "pretraining", f"--init_checkpoint={own}", f"--input_file={records}", "--do_train",
        f"--output_dir={domain}", "--trainable=last:1", "--pack", f"--max_seq_length={LENGTH}",
        "--max_predictions_per_seq=4", "--train_batch_size=8", "--num_train_steps=6",
        "--learning_rate=1e-2", "--num_warmup_steps=1",
    )  # fmt: skip
    learned, before = open_source(str(domain)), open_source(str(own))
    for layer, is_frozen in ((0, True), (1, False)):
        name = f"bert/encoder/layer_{layer}/output/dense/kernel"
        assert np.array_equal(learned.read(name), before.read(name)) == is_frozen
    back = tmp_path / "domain_hf"
    run("convert", str(domain), str(back))
    batch = batch_of(tokenizer, SENTENCES[:5])
    check_logits(learned, back, batch, "masked_lm_logits", tmp_path)
    asked = [s.replace(s.split()[2], "[MASK]", 1) for s in SENTENCES[:4]]
    with fixtures.transformers_answering("pipelines") as ask:
        request = {"task": "fill-mask", "folder": str(back), "inputs": asked}
        answers = ask(**request, options={"top_k": 5})
    for answer, theirs in zip(Filler(str(domain)).fill(asked, 5), answers, strict=True):
        (words,) = answer["masks"]
        assert [word["word"] for word in words] == [other["token_str"] for other in theirs]
        ours, scores = ([each[name] for each in found] for name, found in (
            ("probability", words), ("score", theirs),
        ))  # fmt: skip
        np.testing.assert_allclose(ours, scores, rtol=0, atol=1e-5)
    learn_a_task(domain, task, tmp_path)


def learn_a_task(domain, task, tmp_path):
    """Fine-tunes what has read the domain on long texts, and has transformers classify."""
    texts = [" ".join(SENTENCES[i : i + 1 + i % 5]) for i in range(24)]
    with open(tmp_path / "train.jsonl", "w", encoding="utf-8") as writer:
        for number, text in enumerate(texts):
            label = ("low", "high")[number % 2]
            writer.write(json.dumps({"text": text, "label": label}) + "\n")
    run(
        "classifier", f"--train_file={tmp_path}/train.jsonl", f"--init_checkpoint={domain}",
        f"--output_dir={task}", "--do_train", f"--max_seq_length={LENGTH}", "--trainable=last:1",
        "--long_texts=windows", "--doc_stride=4", "--train_batch_size=8", "--learning_rate=1e-2",
        "--num_train_epochs=2",
    )  # fmt: skip
    back = tmp_path / "task_hf"
    run("convert", str(task), str(back))
    source = open_source(str(task))
    short = [text for text in texts if len(text.split()) <= LENGTH - 2]
    batch = batch_of(source.open_tokenizer(), short)
    check_logits(source, back, batch, "classifier_logits", tmp_path)
    logits = transformers_logits(back, batch, tmp_path)["classifier_logits"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = Predictor(str(task)).predict(short)["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
