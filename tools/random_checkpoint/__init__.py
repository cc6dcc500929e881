"""Seeded random-weight Hugging Face checkpoints of named shapes: `python -m tools.random_checkpoint SHAPE DIR`.

shapes: config.json; tokenizer: tokenizer files; weights: values; safetensors_writer: files. Needs no torch, and the
same arguments give the same bytes on every machine.
"""
