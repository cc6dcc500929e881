"""A compiled model: the packed weights of each core in one file, byte for byte as in the core's memory.

A manifest names every piece with its place and its SHA-256. This file reads only the manifest; the pieces are read by
server/engine/load/artifact_weights.py and written by artifact_writer.py beside it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..config.formats import (
    Dtype,
    GroupSize,
    Quantization,
    RequestedFormats,
    WeightFormats,
    WeightGroups,
)
from ..device.buckets import BucketLists
from ..errors import CheckpointError, SettingsError
from ..models.spec import ModelSpec
from ..placement.matrices import Widths
from ..placement.shard import ShardSpec
from ..typed_json import JsonError, complaint, convert, read, shown_key
from .json_file import refusals_of
from .manifest import MANIFEST

VERSION: Literal[4] = 4  # of the manifest and the packed layout: every change that moves a byte raises it
MAX_MANIFEST_BYTES = 64 << 20
MAX_CORES = 64

NumBytes = Annotated[int, Meta(ge=0, le=1 << 44)]  # bytes of a file
Lengths = Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]  # in tokens, ascending


def core_file(core: int) -> str:
    """Return the name of the file with the weights of `core`."""
    return f"core-{core}.weights"


def model_values(spec: ModelSpec) -> dict[str, Any]:
    """Return the options that packed bytes depend on. Manifests of older releases hold more keys of the model."""
    return {
        "architecture": spec.architecture,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "norm_offset": spec.stack.norm.offset,  # part of the packed weights of norms
        "names": msgspec.json.decode(msgspec.json.encode(spec.names)),
    }


def padded_sizes(spec: ModelSpec, shard: ShardSpec) -> dict[str, int]:
    """Return the widths of the matrices on each core."""
    widths = Widths.of(spec, shard)
    sizes = ("hidden", "qkv", "attended", "intermediate", "vocab", "head")
    return {name: getattr(widths, name) for name in sizes} | {"tp": shard.tp, "expert_tp": shard.expert_tp}


class Entry(msgspec.Struct, frozen=True):
    """One piece of a core's file."""

    offset: NumBytes
    num_bytes: NumBytes
    sha256: str


class CoreEntries(msgspec.Struct, frozen=True):
    """The file of one core, and its pieces by name."""

    num_bytes: NumBytes
    entries: dict[str, Entry]


class _Version(msgspec.Struct):
    format_version: Annotated[int, Meta(ge=1)]


class CompiledBuckets(msgspec.Struct):
    """`BucketLists`, none of them automatic."""

    context_encoding: Lengths
    token_generation: Lengths


class Manifest(msgspec.Struct, kw_only=True):
    """Content of `MANIFEST`: the model, its formats, and the places of its bytes."""

    format_version: Literal[4] = VERSION
    neuronserve_version: str = ""  # the release that wrote it, for people
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=MAX_CORES)]
    enable_expert_parallel: bool = False
    dtype: Dtype
    quantization: Quantization | None = None
    modules_to_not_convert: tuple[str, ...]
    wide_modules: tuple[str, ...] = ()
    from_values: bool
    group_size: GroupSize = 32  # int4 only, like is_symmetric
    is_symmetric: bool = True
    config_sha256: str  # of config.json at compilation
    model: dict[str, Any]  # `model_values`
    padded_sizes: dict[str, Any]
    buckets: CompiledBuckets | None = None  # None in manifests of releases without buckets
    files: list[CoreEntries]  # by core


class Artifact:
    """An artifact whose manifest agrees with its files; their contents are not checked yet. Made by `open`."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self._tp = directory, manifest.tensor_parallel_size
        self._is_expert_parallel = manifest.enable_expert_parallel
        self.cores = [file.entries for file in manifest.files]
        self.formats = WeightFormats(
            manifest.dtype,
            manifest.quantization,
            manifest.modules_to_not_convert,
            manifest.from_values,
            WeightGroups(manifest.group_size, manifest.is_symmetric),
            frozenset(manifest.wide_modules),
        )
        buckets = manifest.buckets
        self.buckets = None if buckets is None else BucketLists(buckets.context_encoding, buckets.token_generation)

    @classmethod
    def open(cls, directory: Path, spec: ModelSpec) -> Artifact:
        """Open `directory`. Raises CheckpointError for a manifest of a newer version, or that its files contradict."""
        file = directory / MANIFEST
        with refusals_of(file):
            manifest = _read_manifest(file)
        digest = hashlib.sha256((directory / "config.json").read_bytes()).hexdigest()
        if manifest.config_sha256 != digest:
            raise CheckpointError(str(directory / "config.json"), f"differs from the one that {MANIFEST} was made with")
        with refusals_of(file):
            _check_model(manifest, spec)
            _check_buckets(manifest.buckets, spec.max_position)
            _check_entries(manifest.files)
        for core, entries in enumerate(manifest.files):
            _check_size(directory / core_file(core), entries)
        return cls(directory, manifest)

    def require(self, asked: RequestedFormats, tp: int, is_expert_parallel: bool = False) -> None:
        """Raise SettingsError, naming both values, when the requested formats are not the compiled ones."""
        pairs = [
            ("tensor_parallel_size", tp, self._tp),
            ("enable_expert_parallel", is_expert_parallel, self._is_expert_parallel),
            ("dtype", asked.dtype, self.formats.dtype),
            ("quantization", asked.quantization or self._quantization, self._quantization),
            ("groups", asked.groups or self.formats.groups, self.formats.groups),
        ]
        for name, wanted, compiled in pairs:
            if wanted != compiled:
                raise SettingsError(f"{name} is {wanted}: {self.directory} was compiled for {compiled}")
        kept = self.formats.modules_to_not_convert
        if not set(asked.modules_to_not_convert) <= set(kept):
            wanted, compiled = ", ".join(asked.modules_to_not_convert), ", ".join(kept) or "none"
            raise SettingsError(f"modules_to_not_convert is {wanted}: {self.directory} was compiled with {compiled}")

    @property
    def _quantization(self) -> str:
        return self.formats.quantization or "none"


def require_digest(directory: Path, digest: str) -> None:
    """Raise CheckpointError unless the manifest has this SHA-256. It covers every byte, since it has their hashes.

    Raises SettingsError for a checkpoint that is not compiled.
    """
    file = directory / MANIFEST
    if not file.is_file():
        raise SettingsError(f"require_artifact_digest: {directory} is no compiled model: compile -o writes one")
    if (found := hashlib.sha256(file.read_bytes()).hexdigest()) != digest:
        raise CheckpointError(str(file), f"has SHA-256 {found}; require_artifact_digest is {digest}")


def _read_manifest(file: Path) -> Manifest:
    """Read the version first: all other keys depend on it."""
    values = read(file, MAX_MANIFEST_BYTES, dict[str, Any])
    version = convert(values, _Version).format_version
    if version != VERSION:
        raise JsonError(complaint("format_version", version, f"this server reads {VERSION}: compile the model again"))
    return convert(values, Manifest)


def _check_model(manifest: Manifest, spec: ModelSpec) -> None:
    tp, values = manifest.tensor_parallel_size, model_values(spec)
    for key, found, expected in (
        ("model", {key: manifest.model.get(key) for key in values}, values),
        (
            "padded_sizes",
            manifest.padded_sizes,
            padded_sizes(spec, ShardSpec.of(spec, tp, manifest.enable_expert_parallel)),
        ),
    ):
        if found != expected:
            raise JsonError(f"{key} differs from what this server makes of config.json: compile the model again")
    if len(manifest.files) != tp:
        raise JsonError(f"files has {len(manifest.files)} files, one for each of {tp} cores must be there")


def _check_buckets(buckets: CompiledBuckets | None, longest: int) -> None:
    if buckets is None:
        return
    for key in ("context_encoding", "token_generation"):
        lengths = list(getattr(buckets, key))
        if lengths != sorted(set(lengths)) or lengths[-1] > longest:
            raise JsonError(complaint(f"buckets.{key}", lengths, f"must rise to at most {longest}"))


def _check_entries(files: list[CoreEntries]) -> None:
    """Check that each piece is inside its file."""
    for core, file in enumerate(files):
        for name, entry in file.entries.items():
            path = f"files[{core}].entries.{shown_key(name)}"
            if entry.offset > file.num_bytes:
                raise JsonError(complaint(f"{path}.offset", entry.offset, f"the file has {file.num_bytes} bytes"))
            left = file.num_bytes - entry.offset
            if entry.num_bytes > left:
                raise JsonError(complaint(f"{path}.num_bytes", entry.num_bytes, f"the file has {left} from there"))


def _check_size(path: Path, file: CoreEntries) -> None:
    """Check that the file has the size that it was written with."""
    try:
        found = os.path.getsize(path)
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from None
    if found != file.num_bytes:
        cut = [name for name, entry in file.entries.items() if entry.offset + entry.num_bytes > found]
        cause = ": truncated" if found < file.num_bytes else ""
        reason = f"has {found} bytes, compiled with {file.num_bytes}{cause}"
        raise CheckpointError(str(path), reason, cut[0] if cut else None)
