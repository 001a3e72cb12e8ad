"""A float64 numpy BERT: the forward pass, both pretraining heads and their losses.

It is written from the papers' formulas. `weights` is a dict of arrays by variable name. Letters: B
examples, F positions, P predictions, H hidden size, V vocabulary.
"""

import numpy as np


def forward(weights, config, input_ids, input_mask, segment_ids, masked_lm_positions):
    """Evaluates the network, with hidden_act="gelu", without dropout: name -> output."""
    weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = (
        weights["bert/embeddings/word_embeddings"][input_ids]
        + weights["bert/embeddings/token_type_embeddings"][segment_ids]
        + weights["bert/embeddings/position_embeddings"][: input_ids.shape[1]]
    )
    x = layer_norm(weights, "bert/embeddings/LayerNorm", x)
    if config.embedding_size not in (None, config.hidden_size):
        x = dense(weights, "bert/encoder/embedding_hidden_mapping_in", x)
    for layer in range(config.num_hidden_layers):
        groups = config.num_hidden_groups or config.num_hidden_layers
        group = int(layer / (config.num_hidden_layers / groups))
        x = _layer(weights, f"bert/encoder/layer_{group}", x, input_mask, config)
    pooled = np.tanh(dense(weights, "bert/pooler/dense", x[:, 0]))

    masked = np.take_along_axis(x, masked_lm_positions[:, :, np.newaxis], axis=1)
    masked = gelu(dense(weights, "cls/predictions/transform/dense", masked))
    masked = layer_norm(weights, "cls/predictions/transform/LayerNorm", masked)
    table = weights["bert/embeddings/word_embeddings"]
    return {
        "sequence_output": x,
        "pooled_output": pooled,
        "masked_lm_logits": masked @ table.T + weights["cls/predictions/output_bias"],
        "next_sentence_logits": pooled @ weights["cls/seq_relationship/output_weights"].T
        + weights["cls/seq_relationship/output_bias"],
    }


def losses(outputs, masked_lm_ids, masked_lm_weights, next_sentence_labels):
    """Computes the masked-LM loss and the next-sentence loss of what `forward` returned."""
    masked = cross_entropy(outputs["masked_lm_logits"], masked_lm_ids)
    masked_lm_loss = np.sum(masked * masked_lm_weights) / np.sum(masked_lm_weights)
    return masked_lm_loss, np.mean(
        cross_entropy(outputs["next_sentence_logits"], next_sentence_labels)
    )


def _layer(weights, scope, x, input_mask, config):
    batch, positions, hidden = x.shape
    heads = config.num_attention_heads

    def split(name):
        values = dense(weights, f"{scope}/attention/self/{name}", x)
        return values.reshape(batch, positions, heads, hidden // heads).transpose(0, 2, 1, 3)

    scores = split("query") @ split("key").transpose(0, 1, 3, 2) / np.sqrt(hidden / heads)
    scores = scores - 10000.0 * (1.0 - input_mask[:, np.newaxis, np.newaxis, :])
    context = (softmax(scores) @ split("value")).transpose(0, 2, 1, 3).reshape(x.shape)
    x = layer_norm(
        weights,
        f"{scope}/attention/output/LayerNorm",
        x + dense(weights, f"{scope}/attention/output/dense", context),
    )
    intermediate = gelu(dense(weights, f"{scope}/intermediate/dense", x))
    return layer_norm(
        weights,
        f"{scope}/output/LayerNorm",
        x + dense(weights, f"{scope}/output/dense", intermediate),
    )


def dense(weights, scope, x):
    return x @ weights[f"{scope}/kernel"] + weights[f"{scope}/bias"]


def layer_norm(weights, scope, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-12)
    return centred / deviation * weights[f"{scope}/gamma"] + weights[f"{scope}/beta"]


def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def cross_entropy(logits, labels):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probs, labels[..., np.newaxis], axis=-1)[..., 0]
