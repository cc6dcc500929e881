"""Reference logits of the tiny shapes, by transformers and torch: `python -m tools.golden` writes them to tests/golden.

sequences: inputs; oracle: the reference model (the only file that imports torch); golden_file: the stored form.
"""
