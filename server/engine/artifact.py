"""A compiled model: the packed weights of each core in one file, byte for byte as they lie in the core's memory.

A manifest names every piece, its place and its SHA-256. Pieces are read straight into the memory they are for, and
hashed on the way: there is no second copy and no unverified byte. Reads only; `artifact_writer.py` writes.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from server.config import AskedFormats, ModelSpec, WeightFormats
from server.device.buckets import BucketLists
from server.device.footprint import MatrixShape, Widths
from server.device.hbm import Buffer
from server.device.shard import ShardSpec
from server.engine.json_object import JsonObject, read_object, shown
from server.engine.tensor_names import EMBEDDING
from server.engine.weights import PackedShard, scales_name, sums_name
from server.errors import CheckpointError, SettingsError

MANIFEST = "neuronserve.json"
VERSION = 2  # of the manifest and of the packed layout: anything that moves a byte is a new version
MAX_MANIFEST_BYTES = 64 << 20
MAX_CORES = 64
MAX_FILE_BYTES = 1 << 44
CHUNK_BYTES = 1 << 20  # read, then hashed while it is in the cache
READERS = 2  # threads: hashing takes longer than reading what is in the page cache


def is_artifact(directory: Path) -> bool:
    return (directory / MANIFEST).exists()


def core_file(core: int) -> str:
    """The name of the file with the weights of `core`."""
    return f"core-{core}.weights"


def model_values(spec: ModelSpec) -> dict[str, Any]:
    """The model's dimensions and options as JSON has them: with lists for tuples."""
    values = asdict(spec)
    return {**values, "windows": list(spec.windows)}


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
        self._directory, self._tp, self._cores = directory, tp, cores
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

    def require(self, asked: AskedFormats, tp: int) -> None:
        """Raises SettingsError, naming both values, when something else is asked than what was compiled."""
        pairs = [
            ("tensor_parallel_size", tp, self._tp),
            ("dtype", asked.dtype, self.formats.dtype),
            ("quantization", asked.quantization or self._quantization, self._quantization),
        ]
        for name, wanted, compiled in pairs:
            if wanted != compiled:
                raise SettingsError(f"{name} is {wanted}: {self._directory} was compiled for {compiled}")
        kept = self.formats.modules_to_not_convert
        if not set(asked.modules_to_not_convert) <= set(kept):
            wanted, compiled = ", ".join(asked.modules_to_not_convert), ", ".join(kept) or "none"
            raise SettingsError(f"modules_to_not_convert is {wanted}: {self._directory} was compiled with {compiled}")

    @property
    def _quantization(self) -> str:
        return self.formats.quantization or "none"

    def source(self) -> ArtifactWeights:
        """Opens the files of all cores."""
        return ArtifactWeights(self._directory, self._cores)


class ArtifactWeights:
    """Reads pieces in the background, into the memory they are for; `finish` waits for them and closes the files."""

    def __init__(self, directory: Path, cores: list[dict[str, Entry]]) -> None:
        self._cores = cores
        self._paths = [directory / core_file(core) for core in range(len(cores))]
        self._pool = ThreadPoolExecutor(READERS, "artifact")
        self._pending: list[Future[None]] = []

    def matrix(self, matrix: MatrixShape, core: int, into: PackedShard) -> None:
        self._read(matrix.modules[0], core, into.tiles)
        if into.scales is not None and into.sums is not None:
            self._read(scales_name(matrix), core, into.scales)
            self._read(sums_name(matrix), core, into.sums)

    def vector(self, name: str, core: int, into: Buffer) -> None:
        self._read(name, core, into)

    def qkv_bias(self, name: str, core: int, into: Buffer) -> None:
        self._read(name, core, into)

    def embedding(self, core: int, into: Buffer) -> None:
        self._read(EMBEDDING, core, into)

    def finish(self) -> None:
        """Raises CheckpointError, naming file and entry, when a piece is not what was written."""
        try:
            for pending in self._pending:
                pending.result()
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._pending.clear()

    def _read(self, name: str, core: int, into: Buffer) -> None:
        path, entry = self._paths[core], self._cores[core].get(name)
        if entry is None:
            raise CheckpointError(str(path), f"has no such entry in {MANIFEST}", name)
        if entry.num_bytes != into.num_bytes:
            raise CheckpointError(str(path), f"has {entry.num_bytes} bytes, the core takes {into.num_bytes}", name)
        self._pending.append(self._pool.submit(_read_piece, path, name, entry, into))


def _read_piece(path: Path, name: str, entry: Entry, into: Buffer) -> None:
    """Fill `into` and check the hash."""
    memory, digest, done = into.bytes.data, hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(entry.offset)
            while done < entry.num_bytes:
                count = file.readinto(memory[done : done + CHUNK_BYTES])
                if not count:
                    raise CheckpointError(str(path), f"truncated: ends {entry.num_bytes - done} bytes early", name)
                digest.update(memory[done : done + count])
                done += count
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}", name) from None
    if digest.hexdigest() != entry.sha256:
        raise CheckpointError(str(path), f"is damaged: SHA-256 {digest.hexdigest()}, compiled as {entry.sha256}", name)


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
