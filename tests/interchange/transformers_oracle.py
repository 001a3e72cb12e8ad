"""What Hugging Face's transformers writes, and computes: the oracle of these tests.

In an environment of its own (pip install torch transformers safetensors):

    python tests/interchange/transformers_oracle.py make tests/interchange/data [NAME ...]
    python tests/interchange/transformers_oracle.py classifier MODEL_DIRECTORY HIDDEN_ACT
    python tests/interchange/transformers_oracle.py ids MODEL_DIRECTORY PAIRS.json LENGTH BATCH.npz
    python tests/interchange/transformers_oracle.py logits MODEL_DIRECTORY BATCH.npz LOGITS.npz
    python tests/interchange/transformers_oracle.py vectors MODEL_DIRECTORY TEXTS.json VECTORS.npz
    python tests/interchange/transformers_oracle.py tokens MODEL_DIRECTORY TEXTS.json IDS.json
    python tests/interchange/transformers_oracle.py words - < REQUESTS.jsonl > ANSWERS.jsonl
    python tests/interchange/transformers_oracle.py pipelines - < REQUESTS.jsonl > ANSWERS.jsonl

`make` writes tiny random models and, for each, `batch.npz` and `logits.npz`. `classifier` writes a
model of three labels, and its tokenizer as transformers saves it. `ids` tokenizes pairs of texts
with the directory's tokenizer, and `tokens` texts, without special tokens; `logits` computes what
its model says to a batch. `vectors` writes the hidden states of texts, and of pairs of texts, and
the pooler's output. `words` splits texts into words by BERT's own normalizer with some settings, or
by a tokenizer.json, for each request, {"settings": {...}, "texts": [...]} or {"file": ..., "texts":
[...]}. `pipelines` runs a pipeline for each request, {"task": ..., "folder": ..., "inputs": [...],
"options": {...}}.
"""

import json
import os
import sys

import numpy as np
import tokenizers
import torch
import transformers

# Directory -> (class, sizes): the largest with the exact gelu, the others cover the other heads.
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
MODELS = {
    "hf_pretraining": (
        "BertForPreTraining",
        {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48},
    ),
    "hf_classifier": (
        "BertForSequenceClassification",
        {**SMALL, "num_labels": 3, "hidden_act": "gelu_new"},
    ),
    "hf_masked_lm": ("BertForMaskedLM", {**SMALL, "hidden_act": "relu"}),
    "hf_encoder": ("BertModel", {**SMALL, "hidden_act": "gelu_pytorch_tanh"}),
    "hf_albert": (
        "AlbertForPreTraining",
        {**SMALL, "embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2},
    ),
    "hf_electra": ("ElectraModel", {**SMALL, "embedding_size": 8}),
}
WORDS = [f"word{i}" for i in range(35)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def make(folder, *chosen):
    for name in chosen or MODELS:
        kind, sizes = MODELS[name]
        directory = os.path.join(folder, name)
        torch.manual_seed(len(name))
        own = {"num_hidden_layers": 2, "max_position_embeddings": 24, **sizes}
        config = getattr(transformers, kind).config_class(vocab_size=len(VOCABULARY), **own)
        model = enlarged(getattr(transformers, kind)(config))
        model.save_pretrained(directory)
        with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as writer:
            writer.write("\n".join(VOCABULARY) + "\n")
        random = np.random.RandomState(7)
        lengths, positions = np.array([[20], [9], [13]]), np.arange(20)
        batch = {
            "input_ids": random.randint(0, len(VOCABULARY), [3, 20]),
            "input_mask": positions < lengths,
            "segment_ids": (positions >= 6) & (positions < lengths),
        }
        batch = {key: value.astype(np.int32) for key, value in batch.items()}
        np.savez(os.path.join(directory, "batch.npz"), **batch)
        np.savez(os.path.join(directory, "logits.npz"), **logits(directory, batch))


def enlarged(model):
    """Gives the model random weights, large enough that every tensor and the activation matter."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(1.0 if key.lower().endswith("norm.weight") else 0.0, 0.3)
    return model


def classifier(directory, hidden_act):
    torch.manual_seed(11)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
        num_labels=3,
        hidden_act=hidden_act,
    )
    enlarged(transformers.BertForSequenceClassification(config)).save_pretrained(directory)
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    transformers.BertTokenizer(vocabulary).save_pretrained(directory)


def ids(directory, pairs, length):
    """Returns `input_ids`, `input_mask` and `segment_ids`, int32 [pair, length]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    first, second = zip(*pairs, strict=True)
    out = tokenizer(list(first), list(second), padding="max_length", max_length=length)
    names = {
        "input_ids": "input_ids",
        "input_mask": "attention_mask",
        "segment_ids": "token_type_ids",
    }
    return {ours: np.array(out[theirs], np.int32) for ours, theirs in names.items()}


def logits(directory, batch):
    """The outputs of a directory's model, by the names of `weights.logits_of`."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    model, loading = kind.from_pretrained(directory, output_loading_info=True)
    # A network for masked words keeps its pooler, which fine-tuning needs, and which is not read.
    loading["unexpected_keys"] = {k for k in loading["unexpected_keys"] if ".pooler." not in k}
    if any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{directory}: {loading}")
    ids, mask, segments = (
        torch.tensor(batch[key], dtype=torch.long)
        for key in ("input_ids", "input_mask", "segment_ids")
    )
    with torch.no_grad():
        model.eval()
        out = model(ids, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
    values = {"sequence_output": out.hidden_states[-1]}
    names = {
        "pooled_output": "pooler_output",
        "masked_lm_logits": "prediction_logits",
        "next_sentence_logits": "seq_relationship_logits",
    }
    values.update({ours: out[theirs] for ours, theirs in names.items() if theirs in out})
    if "sop_logits" in out:
        values["next_sentence_logits"] = out["sop_logits"]
    if "logits" in out:
        masked = isinstance(model, (transformers.BertForMaskedLM, transformers.AlbertForMaskedLM))
        values["masked_lm_logits" if masked else "classifier_logits"] = out["logits"]
    if "start_logits" in out:
        values["answer_logits"] = torch.stack([out["start_logits"], out["end_logits"]], -1)
    return {name: value.numpy() for name, value in values.items()}


def again(directory, target):
    """Saves what a directory's model is loaded as."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    kind.from_pretrained(directory).save_pretrained(target)


def vectors(directory, texts):
    """Returns `hidden` [layers + 1, text, length, width], `mask` and `pooled`, text by text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()
    length = model.config.max_position_embeddings
    hidden, masks, pooled = [], [], []
    for text in texts:
        parts = [text] if isinstance(text, str) else text
        options = {"truncation": True, "max_length": length, "return_tensors": "pt"}
        with torch.no_grad():
            out = model(**tokenizer(*parts, **options), output_hidden_states=True)
        states = torch.stack(out.hidden_states)[:, 0].numpy()
        room = length - states.shape[1]
        hidden.append(np.pad(states, [(0, 0), (0, room), (0, 0)]))
        masks.append(np.arange(length) < length - room)
        if out.get("pooler_output") is not None:
            pooled.append(out.pooler_output[0].numpy())
    return {"hidden": np.stack(hidden, 1), "mask": np.stack(masks), "pooled": np.array(pooled)}


def words():
    """Answers requests, a line each, until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        if "file" in request:
            tokenizer = tokenizers.Tokenizer.from_file(request["file"])
            normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
        else:
            normalizer = tokenizers.normalizers.BertNormalizer(**request["settings"])
            splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
        answers = [
            [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
            for text in request["texts"]
        ]
        print(json.dumps(answers), flush=True)


def pipelines():
    """Answers requests, a line each, until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        pipeline = transformers.pipeline(request["task"], request["folder"], device="cpu")
        answers = [pipeline(each, **request["options"]) for each in request["inputs"]]
        print(json.dumps(answers, default=float), flush=True)  # scores may be NumPy's


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    if command == "make":
        make(folder, *rest)
    elif command == "words":
        words()
    elif command == "pipelines":
        pipelines()
    elif command == "classifier":
        classifier(folder, *rest)
    elif command == "again":
        again(folder, *rest)
    elif command == "ids":
        with open(rest[0], encoding="utf-8") as reader:
            np.savez(rest[2], **ids(folder, json.load(reader), int(rest[1])))
    elif command == "tokens":
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with open(rest[0], encoding="utf-8") as reader:
            texts = json.load(reader)
        with open(rest[1], "w", encoding="utf-8") as writer:
            json.dump(tokenizer(texts, add_special_tokens=False)["input_ids"], writer)
    elif command == "vectors":
        with open(rest[0], encoding="utf-8") as reader:
            np.savez_compressed(rest[1], **vectors(folder, json.load(reader)))
    else:
        np.savez(rest[1], **logits(folder, np.load(rest[0])))
