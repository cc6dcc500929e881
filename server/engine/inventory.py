"""What an engine can say of itself so that a figure can be reproduced: which weights, compiled how, priced by what."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from server.config import ModelSpec, Pace, Quantization, WeightFormats
from server.device.buckets import CompiledShapes
from server.device.step_pricer import StepPricer
from server.engine.artifact import MANIFEST, is_artifact
from server.engine.checkpoint import INDEX, MAX_INDEX_BYTES, WEIGHTS
from server.engine.json_object import read_object
from server.engine.safetensors_file import LENGTH_BYTES

Hashed = Literal["manifest", "headers and sizes"]


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """`manifest`: of an artifact's manifest, which has the hash of every piece, so it stands for every byte.

    `headers and sizes`: of a checkpoint's index and, for each safetensors file by name, name, size and header. It tells
    models, formats and shapes apart, not two trainings of one shape: reading all data would delay the start.
    """

    sha256: str
    of: Hashed

    @classmethod
    def read(cls, directory: Path) -> WeightsIdentity:
        """Of the model in `directory`, whose files have been checked."""
        if is_artifact(directory):
            return cls(hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest(), "manifest")
        digest, names = hashlib.sha256(), [WEIGHTS]
        if (directory / INDEX).exists():
            digest.update((directory / INDEX).read_bytes())
            weight_map = read_object(directory / INDEX, MAX_INDEX_BYTES).require("weight_map")
            names = sorted(set(weight_map.values()))
        for name in names:
            path = directory / name
            with path.open("rb") as file:
                length = file.read(LENGTH_BYTES)
                header = file.read(int.from_bytes(length, "little"))
            digest.update(f"{name}\0{path.stat().st_size}\0".encode() + length + header)
        return cls(digest.hexdigest(), "headers and sizes")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's part of an inventory."""

    architecture: str
    num_params: int
    quantization: Quantization | None
    modules_to_not_convert: tuple[str, ...]
    weights: WeightsIdentity
    config_sha256: str  # of config.json
    compiled: CompiledShapes
    calibration: str  # version of the cost model's coefficients
    extrapolated: tuple[str, ...]  # why modelled times have no measurement behind them; empty when they have
    pace: Pace


def engine_facts(
    directory: Path, spec: ModelSpec, formats: WeightFormats, pricer: StepPricer, compiled: CompiledShapes, pace: Pace
) -> EngineFacts:
    """Of a model that has been loaded from `directory`."""
    return EngineFacts(
        architecture=spec.architecture,
        num_params=spec.num_params,
        quantization=formats.quantization,
        modules_to_not_convert=formats.modules_to_not_convert,
        weights=WeightsIdentity.read(directory),
        config_sha256=hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(),
        compiled=compiled,
        calibration=pricer.calibration,
        extrapolated=pricer.why_extrapolated(),
        pace=pace,
    )
