"""Source of a model's weights, chosen by its directory: an artifact, or a checkpoint, plain or quantized."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...checkpoint.artifact import Artifact, require_digest
from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.compressed_tensors import Stored, StoredQuantization, read_stored_quantization
from ...checkpoint.json_file import refusals_of
from ...checkpoint.manifest import is_artifact
from ...checkpoint.model_config import model_spec_of, read_model_config, read_model_spec
from ...checkpoint.scaled_blocks import BlockForm
from ...checkpoint.tensor_files import open_tensors
from ...config.formats import DEFAULT_GROUPS, RequestedFormats, WeightFormats
from ...device.buckets import BucketLists
from ...errors import SettingsError
from ...models.decoder import decoder_graph
from ...models.predictor import predictor_of
from ...models.spec import ModelSpec, without_output_layer
from ...placement.shard import ShardSpec
from .artifact_weights import ArtifactWeights
from .checkpoint_weights import CheckpointWeights
from .stored_groups import StoredGroups
from .weights import WeightSource


@dataclass(frozen=True, slots=True)
class StatesSource:
    """The layers of a model that compute the last states, and its checkpoint, which may hold a head."""

    spec: ModelSpec
    formats: WeightFormats
    source: WeightSource
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files have been checked and whose weights can be loaded."""

    spec: ModelSpec
    formats: WeightFormats
    source: WeightSource
    notes: tuple[str, ...] = ()  # lines for the user
    buckets: BucketLists | None = None  # of an artifact


def open_model(
    directory: Path,
    requested: RequestedFormats,
    tp: int,
    num_threads: int = 1,
    is_expert_parallel: bool = False,
    digest: str | None = None,
) -> ModelSource:
    """Open the model in `directory` for `tp` cores; `num_threads` threads pack a checkpoint.

    Raises CheckpointError for unsupported files, SettingsError when they are in other formats or for another number of
    cores than requested, DeviceError for experts that cannot be laid out so. With a `digest` any model is refused but
    the artifact whose manifest has that SHA-256.
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
    notes = (surplus,) if checkpoint.surplus else ()
    if isinstance(stored, BlockForm):
        notes = (*notes, f"files have codes with scales of blocks: served in {formats.quantization or formats.dtype}")
    return ModelSource(spec, formats, source, notes)


def open_states(directory: Path, requested: RequestedFormats, tp: int, num_threads: int = 1) -> StatesSource:
    """Open the layers that compute the last states of tokens; other tensors are optional.

    Raises as `open_model`, and SettingsError for an artifact.
    """
    if is_artifact(directory):
        raise SettingsError(f"{directory} is compiled to generate: an encoder is loaded from its checkpoint")
    whole, formats, stored = describe_checkpoint(directory, requested)
    spec = without_output_layer(whole)
    checkpoint = Checkpoint.open(directory, spec, stored)
    source = CheckpointWeights(checkpoint, ShardSpec.of(spec, tp), formats, num_threads)
    return StatesSource(spec, formats, source, checkpoint)


def open_predictor(directory: Path, requested: RequestedFormats, tp: int, num_threads: int = 1) -> ModelSource:
    """Open the layer after the last of the model in `directory` that predicts a further token.

    Raises as `open_model`, and SettingsError for an artifact.
    """
    if is_artifact(directory):
        raise SettingsError(f"{directory} is compiled without layers that predict further tokens")
    whole, formats, stored = describe_checkpoint(directory, requested)
    if not whole.num_nextn_layers:
        raise SettingsError(f"{directory} has no layer that predicts further tokens")
    spec = predictor_of(whole, open_tensors(directory, whole, {}))
    checkpoint, shard = Checkpoint.open(directory, spec, stored), ShardSpec.of(spec, tp)
    formats = StoredGroups(checkpoint, shard).served(spec, formats, requested)
    return ModelSource(spec, formats, CheckpointWeights(checkpoint, shard, formats, num_threads))


def require_generator(spec: ModelSpec) -> None:
    """Raise SettingsError for a model without an output layer."""
    if not decoder_graph(spec).has_head:
        raise SettingsError(
            f"{spec.architecture} generates no text: `neuronserve embed` runs it, and `serve` with --runner auto"
        )


def describe_checkpoint(directory: Path, requested: RequestedFormats) -> tuple[ModelSpec, WeightFormats, Stored | None]:
    """Read config.json alone: the model, its formats when served as requested, and the formats of its files.

    Raises CheckpointError for an unsupported model, SettingsError when its files are in other formats.
    """
    file = directory / "config.json"
    config = read_model_config(file)
    with refusals_of(file):
        spec = model_spec_of(config)
        stored = read_stored_quantization(config, spec)
    return spec, _formats(directory, requested, stored), stored


def _formats(directory: Path, requested: RequestedFormats, stored: Stored | None) -> WeightFormats:
    """Return the served formats: 8-bit codes in the files stay, or become `dtype` in modules that are left out."""
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
    """Return `requested`, or the model's own length. Raises SettingsError beyond the model's positions."""
    if requested is None:
        return spec.longest
    if not 2 <= requested <= spec.longest:
        why = f"; {spec.why_served} for longer contexts" if spec.why_served else ""
        raise SettingsError(f"max_model_len is {requested}: this model takes 2 to {spec.longest} tokens{why}")
    return requested
