"""The embedded default model: corpus, tokenizer, training, export and evaluation. Nothing here runs in the server."""
