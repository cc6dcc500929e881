"""Golden files, one for each shape: reference logits at a few positions, and all that is needed to repeat them.

Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from neuronserve.server.typed_json import decode
from tools.golden.sequences import TokenSequence
from tools.random_checkpoint.writer import Options, write_checkpoint

SEED = 20
DTYPE = "f32"
DIRECTORY = Path(__file__).resolve().parents[2] / "tests" / "golden"

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Golden:
    """Reference of one shape. `logits[i]` are rows `sequences[i].positions`: `[positions, vocab]`."""

    shape: str
    weights_sha256: str  # of model.safetensors: if it differs, the logits mean nothing
    versions: Mapping[str, str]
    sequences: list[TokenSequence]
    logits: list[Logits]


class _Facts(msgspec.Struct):
    """Facts stored beside the arrays; seed and dtype are for the reader."""

    shape: str
    weights_sha256: str
    versions: dict[str, str]


def golden_path(shape: str) -> Path:
    return DIRECTORY / f"{shape}.npz"


def write_golden_checkpoint(shape: str, directory: Path) -> str:
    """Write the float32 checkpoint that the golden logits belong to; returns the digest of its weights."""
    write_checkpoint(shape, directory, Options(dtype=DTYPE, seed=SEED))
    with (directory / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_golden(path: Path, golden: Golden) -> None:
    facts = {"shape": golden.shape, "seed": SEED, "dtype": DTYPE, "weights_sha256": golden.weights_sha256}
    arrays: dict[str, Any] = {"facts": np.array(json.dumps(facts | {"versions": dict(golden.versions)}))}
    for i, (sequence, logits) in enumerate(zip(golden.sequences, golden.logits, strict=True)):
        arrays[f"token_ids_{i}"] = np.array(sequence.token_ids, np.int32)
        arrays[f"logits_{i}"] = logits
    np.savez(path, **arrays)


def load_golden(path: Path) -> Golden:
    with np.load(path, allow_pickle=False) as file:
        facts = decode(str(file["facts"]), _Facts)
        count = sum(name.startswith("logits_") for name in file.files)
        sequences = [TokenSequence(tuple(file[f"token_ids_{i}"].tolist())) for i in range(count)]
        logits = [file[f"logits_{i}"] for i in range(count)]
    return Golden(facts.shape, facts.weights_sha256, facts.versions, sequences, logits)
