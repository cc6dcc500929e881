"""Source of a model's weights by its directory: an artifact, or a checkpoint, plain or quantized."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server.checkpoint.artifact import Artifact
from server.checkpoint.checkpoint import Checkpoint
from server.checkpoint.compressed_tensors import StoredQuantization, read_stored_quantization
from server.checkpoint.json_file import refusals_of
from server.checkpoint.manifest import is_artifact
from server.checkpoint.model_config import model_spec_of, read_model_config, read_model_spec
from server.config import RequestedFormats, WeightFormats
from server.device.buckets import BucketLists
from server.engine.load.artifact_weights import ArtifactWeights
from server.engine.load.checkpoint_weights import CheckpointWeights
from server.engine.load.weights import WeightSource
from server.errors import SettingsError
from server.models.spec import ModelSpec
from server.placement.shard import ShardSpec


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files have been checked, and whose weights can be placed."""

    spec: ModelSpec
    formats: WeightFormats
    source: WeightSource
    notes: tuple[str, ...] = ()  # worth a line to the user
    buckets: BucketLists | None = None  # that it was compiled for ahead of time


def open_model(directory: Path, requested: RequestedFormats, tp: int, num_threads: int = 1) -> ModelSource:
    """The model in `directory`, to be laid over `tp` cores; a checkpoint is packed by `num_threads` threads.

    Raises CheckpointError for files that cannot be served, SettingsError when they are already in other formats, or
    for another number of cores, than requested.
    """
    if is_artifact(directory):
        spec = read_model_spec(directory)
        artifact = Artifact.open(directory, spec)
        artifact.require(requested, tp)
        return ModelSource(spec, artifact.formats, ArtifactWeights(artifact), buckets=artifact.buckets)
    spec, formats, stored = describe_checkpoint(directory, requested)
    checkpoint = Checkpoint.open(directory, spec, stored)
    source = CheckpointWeights(checkpoint, ShardSpec.of(spec, tp), formats, num_threads)
    surplus = f"tensors that this model does not use: {', '.join(checkpoint.surplus[:4])}"
    return ModelSource(spec, formats, source, (surplus,) if checkpoint.surplus else ())


def describe_checkpoint(
    directory: Path, requested: RequestedFormats
) -> tuple[ModelSpec, WeightFormats, StoredQuantization | None]:
    """What config.json alone says: the model, its formats when served as requested, and those of its files.

    Raises CheckpointError for a model that cannot be served, SettingsError when its files are in other formats.
    """
    file = directory / "config.json"
    config = read_model_config(file)
    with refusals_of(file):
        spec = model_spec_of(config)
        stored = read_stored_quantization(config, spec)
    return spec, _formats(directory, requested, stored), stored


def _formats(directory: Path, requested: RequestedFormats, stored: StoredQuantization | None) -> WeightFormats:
    """Formats served: codes that are in the files stay as they are, or become `dtype` where they are left out."""
    if stored is None:
        quantization = None if requested.quantization == "none" else requested.quantization
        return WeightFormats(
            requested.dtype, quantization, requested.modules_to_not_convert, is_rotated=quantization == "int8"
        )
    if requested.quantization not in (None, stored.quantization):
        raise SettingsError(
            f"quantization is {requested.quantization}: {directory} is quantized to {stored.quantization}"
        )
    left_out = dict.fromkeys((*stored.left_out, *requested.modules_to_not_convert))
    return WeightFormats(requested.dtype, stored.quantization, tuple(left_out))
