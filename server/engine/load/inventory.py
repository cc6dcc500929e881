"""Facts of an engine by which a figure can be reproduced: the weights, the compiled shapes, the calibration."""

from __future__ import annotations

import hashlib
from pathlib import Path

from server.checkpoint.checkpoint import INDEX, WEIGHTS, read_weight_map
from server.checkpoint.manifest import MANIFEST, is_artifact
from server.checkpoint.safetensors_file import LENGTH_BYTES
from server.config import Pace, WeightFormats
from server.cost.pricer import StepPricer
from server.device.buckets import CompiledShapes
from server.link.messages import EngineFacts, WeightsIdentity
from server.models.spec import ModelSpec
from server.models.tensors import num_params


def weights_identity(directory: Path) -> WeightsIdentity:
    """Identity of the weights of the model in `directory`, whose files have been checked."""
    if is_artifact(directory):
        return WeightsIdentity(hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest(), "manifest")
    digest, names = hashlib.sha256(), [WEIGHTS]
    if (directory / INDEX).exists():
        digest.update((directory / INDEX).read_bytes())
        names = sorted(set(read_weight_map(directory).values()))
    for name in names:
        path = directory / name
        with path.open("rb") as file:
            length = file.read(LENGTH_BYTES)
            header = file.read(int.from_bytes(length, "little"))
        digest.update(f"{name}\0{path.stat().st_size}\0".encode() + length + header)
    return WeightsIdentity(digest.hexdigest(), "headers and sizes")


def engine_facts(
    directory: Path, spec: ModelSpec, formats: WeightFormats, pricer: StepPricer, compiled: CompiledShapes, pace: Pace
) -> EngineFacts:
    """Facts of an engine whose model has been loaded from `directory`."""
    return EngineFacts(
        architecture=spec.architecture,
        num_params=num_params(spec),
        quantization=formats.quantization,
        modules_to_not_convert=formats.modules_to_not_convert,
        weights=weights_identity(directory),
        config_sha256=hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(),
        compiled=compiled,
        calibration=pricer.calibration,
        extrapolated=pricer.why_extrapolated(),
        pace=pace,
        stack=pricer.stack,
    )
