"""transformers' files: weights, configuration, tokenizer."""
