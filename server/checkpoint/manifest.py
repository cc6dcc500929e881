"""Whether a directory holds a model compiled ahead of time. What is in its manifest is read by artifact.py."""

from __future__ import annotations

import os
from pathlib import Path

MANIFEST = "neuronserve.json"


def is_artifact(directory: Path) -> bool:
    """Whether `neuronserve compile` wrote `directory`."""
    return os.path.lexists(directory / MANIFEST)
