"""Test whether a directory holds a compiled model. artifact.py reads its manifest."""

from __future__ import annotations

import os
from pathlib import Path

MANIFEST = "neuronserve.json"


def is_artifact(directory: Path) -> bool:
    """Return whether `neuronserve compile` wrote `directory`."""
    return os.path.lexists(directory / MANIFEST)
