"""A compiled model: the packed weights of each core in one file, byte for byte as they lie in the core's memory.

A manifest names every piece, its place and its SHA-256. Reads the manifest only; what it names is read by
server/engine/load/artifact_weights.py and written by artifact_writer.py beside it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from server.checkpoint.json_object import JsonObject, read_object
from server.config import RequestedFormats, WeightFormats
from server.device.buckets import BucketLists
from server.errors import CheckpointError, SettingsError
from server.models.config_values import shown
from server.models.spec import ModelSpec
from server.placement.matrices import Widths
from server.placement.shard import ShardSpec

MANIFEST = "neuronserve.json"
VERSION = 2  # of the manifest and of the packed layout: anything that moves a byte is a new version
MAX_MANIFEST_BYTES = 64 << 20
MAX_CORES = 64
MAX_FILE_BYTES = 1 << 44


def is_artifact(directory: Path) -> bool:
    return (directory / MANIFEST).exists()


def core_file(core: int) -> str:
    """The name of the file with the weights of `core`."""
    return f"core-{core}.weights"


def model_values(spec: ModelSpec) -> dict[str, Any]:
    """The model's dimensions and options as JSON has them: with lists for tuples."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    return values


def padded_sizes(spec: ModelSpec, tp: int) -> dict[str, int]:
    """Widths of the matrices on each core."""
    return asdict(Widths.of(spec, ShardSpec.of(spec, tp)))


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of a core's file."""

    offset: int
    num_bytes: int
    sha256: str


class Artifact:
    """An artifact whose manifest has been checked against its files, not yet their contents. Made by `open`."""

    def __init__(
        self,
        directory: Path,
        tp: int,
        formats: WeightFormats,
        buckets: BucketLists | None,
        cores: list[dict[str, Entry]],
    ) -> None:
        self.directory, self.cores, self._tp = directory, cores, tp
        self.formats, self.buckets = formats, buckets

    @classmethod
    def open(cls, directory: Path, spec: ModelSpec) -> Artifact:
        """Raises CheckpointError for a manifest of a newer version, of another model, or that its files belie."""
        manifest = read_object(directory / MANIFEST, MAX_MANIFEST_BYTES)
        version = manifest.integer("format_version", None, 1, 1 << 30)
        if version != VERSION:
            reason = f"{version} is not the one this server reads, {VERSION}: compile the model again"
            manifest.refuse("format_version", reason)
        digest = hashlib.sha256((directory / "config.json").read_bytes()).hexdigest()
        if manifest.require("config_sha256") != digest:
            raise CheckpointError(str(directory / "config.json"), f"differs from the one that {MANIFEST} was made with")
        tp = manifest.integer("tensor_parallel_size", None, 1, MAX_CORES)
        for key, expected in (("model", model_values(spec)), ("padded_sizes", padded_sizes(spec, tp))):
            if manifest.require(key) != expected:
                manifest.refuse(key, "differs from what this server makes of config.json: compile the model again")
        files = manifest.require("files")
        if not isinstance(files, list) or len(files) != tp:
            manifest.refuse("files", f"must list one file for each of {tp} cores")
        cores = [_read_core(directory, manifest, core, file) for core, file in enumerate(files)]
        return cls(directory, tp, _read_formats(manifest), _read_buckets(manifest, spec.max_position), cores)

    def require(self, asked: RequestedFormats, tp: int) -> None:
        """Raises SettingsError, naming both values, when something else is asked than what was compiled."""
        pairs = [
            ("tensor_parallel_size", tp, self._tp),
            ("dtype", asked.dtype, self.formats.dtype),
            ("quantization", asked.quantization or self._quantization, self._quantization),
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


def _read_formats(manifest: JsonObject) -> WeightFormats:
    dtype, quantization = manifest.require("dtype"), manifest.get("quantization")
    if dtype not in ("bfloat16", "float32"):
        manifest.refuse("dtype", f"{shown(dtype)} is unknown")
    if quantization not in (None, "int8", "int8-weight-only", "fp8", "fp8_e5m2"):
        manifest.refuse("quantization", f"{shown(quantization)} is unknown")
    modules = manifest.require("modules_to_not_convert")
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        manifest.refuse("modules_to_not_convert", f"must be a list of names, not {shown(modules)}")
    return WeightFormats(dtype, quantization, tuple(modules), manifest.require("is_rotated") is True)


def _read_buckets(manifest: JsonObject, longest: int) -> BucketLists | None:
    """None in manifests from before there were any."""
    buckets = manifest.child("buckets")
    if buckets is None:
        return None
    context, tokens = (_read_lengths(buckets, key, longest) for key in ("context_encoding", "token_generation"))
    return BucketLists(context, tokens)


def _read_lengths(buckets: JsonObject, key: str, longest: int) -> tuple[int, ...]:
    lengths = buckets.require(key)
    if not isinstance(lengths, list) or not lengths or not all(type(length) is int for length in lengths):
        buckets.refuse(key, f"must be a list of lengths, not {shown(lengths)}")
    if lengths != sorted(set(lengths)) or not 1 <= lengths[0] <= lengths[-1] <= longest:
        buckets.refuse(key, f"must rise from at least 1 to at most {longest}, not {shown(lengths)}")
    return tuple(lengths)


def _read_core(directory: Path, manifest: JsonObject, core: int, values: object) -> dict[str, Entry]:
    """The entries of one core, each inside its file, which must have the size it was written with."""
    if not isinstance(values, dict):
        manifest.refuse("files", f"has {shown(values)} for core {core}")
    file, path = JsonObject(manifest.file, values, f"files[{core}]."), directory / core_file(core)
    num_bytes = file.integer("num_bytes", None, 0, MAX_FILE_BYTES)
    try:
        found = os.path.getsize(path)
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from None
    entries = file.child("entries")
    if entries is None:
        file.refuse("entries", "is missing")
    read = {name: _read_entry(entries, name, num_bytes) for name in entries.values}
    if found != num_bytes:
        cut = [name for name, entry in read.items() if entry.offset + entry.num_bytes > found]
        reason = f"has {found} bytes, compiled with {num_bytes}" + (": truncated" if found < num_bytes else "")
        raise CheckpointError(str(path), reason, cut[0] if cut else None)
    return read


def _read_entry(entries: JsonObject, name: str, file_bytes: int) -> Entry:
    values = entries.child(name)
    if values is None:
        entries.refuse(shown(name), "is empty")
    offset = values.integer("offset", None, 0, file_bytes)
    num_bytes = values.integer("num_bytes", None, 0, file_bytes - offset)
    sha256 = values.require("sha256")
    if not isinstance(sha256, str):
        values.refuse("sha256", f"must be text, not {shown(sha256)}")
    return Entry(offset, num_bytes, sha256)
