"""The embedded default model: corpus, tokenizer, training, export and evaluation. The server never imports it."""
