"""Files of a checkpoint that are read, and a check that a clone of its repository has them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..errors import CheckpointError

WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
COPIES = "consolidated*"
# Copies of the same weights in other layouts, which double the download. Folders whose names begin with a digit are
# modules of sentence-transformers.
UNWANTED = ("[!0-9]*/*", COPIES)
POINTER, MAX_POINTER_BYTES = b"version https://git-lfs", 1024  # Git LFS's specification


def refuse_pointers(path: Path) -> None:
    """Raise CheckpointError where Git LFS has left a pointer in place of a file of the directory, or of this file."""
    with contextlib.suppress(OSError):  # the reader of an unreadable file refuses it
        for file in path.iterdir() if path.is_dir() else (path,):
            is_wanted = any(map(file.match, (*WANTED, "*.gguf"))) and not file.match(COPIES)
            if is_wanted and file.is_file() and file.stat().st_size <= MAX_POINTER_BYTES and _begins_as_pointer(file):
                raise CheckpointError(str(file), "is a pointer of Git LFS; `git lfs pull` puts the file in its place")


def _begins_as_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(POINTER)) == POINTER
