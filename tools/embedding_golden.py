"""The command `python -m tools.embedding_golden MODEL_DIR` writes tests/golden/NAME.npz: vectors of a few texts.

They are computed by sentence-transformers in float32, which needs a Python that has it; the project's own has not.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
NAME = "all-minilm-l6-v2"
TEXTS = (
    "The cat sits on the mat.",
    "A feline is resting on a rug.",
    "",
    "!",
    "Quarterly revenue grew by 12.5% to $4.2 billion, beating analysts' estimates.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "東京は日本の首都です。",
    "def encode(texts: list[str]) -> np.ndarray: ...",
    "How do I reset my password?",
    "I forgot my credentials and cannot log in; what should I do?",
    "emoji 🙂 and\ttabs\nand newlines",
    "The mitochondrion is the powerhouse of the cell. " * 40,  # longer than the 256 tokens that are read
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.embedding_golden", description=(__doc__ or "").split(":")[0])
    parser.add_argument("model", type=Path, help="checkpoint directory with modules.json")
    directory = parser.parse_args(argv).model
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(directory), device="cpu").encode(list(TEXTS), show_progress_bar=False)
    path = GOLDEN / f"{NAME}.npz"
    made_by = [f"{package} {version(package)}" for package in ("sentence-transformers", "torch", "transformers")]
    np.savez_compressed(path, texts=np.array(TEXTS), vectors=vectors.astype(np.float32), made_by=np.array(made_by))
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
