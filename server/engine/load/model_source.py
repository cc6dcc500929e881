"""Source of a model's weights by its directory: an artifact, or a checkpoint, plain or quantized."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neuronserve.server.checkpoint.artifact import Artifact, require_digest
from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.compressed_tensors import Stored, StoredQuantization, read_stored_quantization
from neuronserve.server.checkpoint.json_file import refusals_of
from neuronserve.server.checkpoint.manifest import is_artifact
from neuronserve.server.checkpoint.model_config import model_spec_of, read_model_config, read_model_spec
from neuronserve.server.config.formats import DEFAULT_GROUPS, RequestedFormats, WeightFormats
from neuronserve.server.device.buckets import BucketLists
from neuronserve.server.engine.load.artifact_weights import ArtifactWeights
from neuronserve.server.engine.load.checkpoint_weights import CheckpointWeights
from neuronserve.server.engine.load.stored_groups import StoredGroups
from neuronserve.server.engine.load.weights import WeightSource
from neuronserve.server.errors import SettingsError
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.spec import ModelSpec, without_output_layer
from neuronserve.server.placement.shard import ShardSpec


@dataclass(frozen=True, slots=True)
class StatesSource:
    """What of a model makes the last states of tokens, and its files, which may hold a head."""

    spec: ModelSpec
    formats: WeightFormats
    source: WeightSource
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files have been checked, and whose weights can be placed."""

    spec: ModelSpec
    formats: WeightFormats
    source: WeightSource
    notes: tuple[str, ...] = ()  # worth a line to the user
    buckets: BucketLists | None = None  # that it was compiled for ahead of time


def open_model(
    directory: Path,
    requested: RequestedFormats,
    tp: int,
    num_threads: int = 1,
    is_expert_parallel: bool = False,
    digest: str | None = None,
) -> ModelSource:
    """The model in `directory`, to be laid over `tp` cores; a checkpoint is packed by `num_threads` threads.

    Raises CheckpointError for files that cannot be served, SettingsError when they are already in other formats, or
    for another number of cores, than requested, DeviceError for experts that cannot be laid out as asked. With a
    `digest` also for whatever is not the compiled model whose manifest has that SHA-256.
    """
    if digest is not None:
        require_digest(directory, digest)
    if is_artifact(directory):
        spec = read_model_spec(directory)
        artifact = Artifact.open(directory, spec)
        artifact.require(requested, tp, is_expert_parallel)
        return ModelSource(spec, artifact.formats, ArtifactWeights(artifact), buckets=artifact.buckets)
    spec, formats, stored = describe_checkpoint(directory, requested)
    require_generator(spec)
    checkpoint = Checkpoint.open(directory, spec, stored)
    shard = ShardSpec.of(spec, tp, is_expert_parallel)
    formats = StoredGroups(checkpoint, shard).served(spec, formats, requested)
    source = CheckpointWeights(checkpoint, shard, formats, num_threads)
    surplus = f"tensors that this model does not use: {', '.join(checkpoint.surplus[:4])}"
    return ModelSource(spec, formats, source, (surplus,) if checkpoint.surplus else ())


def open_states(directory: Path, requested: RequestedFormats, tp: int, num_threads: int = 1) -> StatesSource:
    """As `open_model`, what of the model makes the last states of tokens; other tensors may be there or not.

    Raises SettingsError also for a compiled model.
    """
    if is_artifact(directory):
        raise SettingsError(f"{directory} is compiled to generate: an encoder is loaded from its checkpoint")
    whole, formats, stored = describe_checkpoint(directory, requested)
    spec = without_output_layer(whole)
    checkpoint = Checkpoint.open(directory, spec, stored)
    source = CheckpointWeights(checkpoint, ShardSpec.of(spec, tp), formats, num_threads)
    return StatesSource(spec, formats, source, checkpoint)


def require_generator(spec: ModelSpec) -> None:
    """Raises SettingsError for a model without an output layer."""
    if not decoder_graph(spec).has_head:
        raise SettingsError(
            f"{spec.architecture} generates no text: `neuronserve embed` runs it, and `serve` with --runner auto"
        )


def describe_checkpoint(directory: Path, requested: RequestedFormats) -> tuple[ModelSpec, WeightFormats, Stored | None]:
    """What config.json alone says: the model, its formats when served as requested, and those of its files.

    Raises CheckpointError for a model that cannot be served, SettingsError when its files are in other formats.
    """
    file = directory / "config.json"
    config = read_model_config(file)
    with refusals_of(file):
        spec = model_spec_of(config)
        stored = read_stored_quantization(config, spec)
    return spec, _formats(directory, requested, stored), stored


def _formats(directory: Path, requested: RequestedFormats, stored: Stored | None) -> WeightFormats:
    """Formats served: 8-bit codes that are in the files stay as they are, or become `dtype` where they are left out."""
    if not isinstance(stored, StoredQuantization):
        quantization = None if requested.quantization == "none" else requested.quantization
        return WeightFormats(
            requested.dtype,
            quantization,
            requested.modules_to_not_convert,
            from_values=True,
            groups=requested.groups or DEFAULT_GROUPS,
        )
    if requested.quantization not in (None, stored.quantization):
        raise SettingsError(
            f"quantization is {requested.quantization}: {directory} is quantized to {stored.quantization}"
        )
    left_out = dict.fromkeys((*stored.left_out, *requested.modules_to_not_convert))
    return WeightFormats(requested.dtype, stored.quantization, tuple(left_out))


def context_length(requested: int | None, spec: ModelSpec) -> int:
    """`requested`, or the model's own. Raises SettingsError beyond what the model was made for."""
    if requested is None:
        return spec.max_position
    if not 2 <= requested <= spec.max_position:
        raise SettingsError(f"max_model_len is {requested}: this model takes 2 to {spec.max_position} tokens")
    return requested
