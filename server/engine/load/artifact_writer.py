"""Ahead-of-time compilation of a model: its weights are quantized and packed into files mapped as the cores' memory.

The model is never whole in memory, except in the page cache. The directory appears under its name when it is complete.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from ... import __version__
from ...checkpoint.artifact import (
    CompiledBuckets,
    CoreEntries,
    Entry,
    Manifest,
    core_file,
    model_values,
    padded_sizes,
)
from ...checkpoint.manifest import MANIFEST, is_artifact
from ...config import CompileConfig
from ...device.buckets import BucketLists
from ...device.catalog import instance
from ...device.core import HostUse
from ...device.hbm import ALIGNMENT, Buffer
from ...device.layout import round_up
from ...errors import SettingsError
from ...host.memory import GIB
from ...kernels.isa.cache import use_cache
from ...models.spec import ModelSpec
from ...placement.fit import with_types_of
from ...placement.host_footprint import packed_weight_bytes
from ...placement.shard import ShardSpec
from .artifact_weights import CHUNK_BYTES
from .compile_report import CompileReport, compile_report
from .model_source import ModelSource, context_length, describe_checkpoint, open_model, require_generator
from .weights import OnProgress, WeightLoader

INDEX_SUFFIX = ".index.json"
COPIED = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")  # files to copy beside the weights


def compile_model(config: CompileConfig, on_progress: OnProgress) -> CompileReport:
    """Write the artifact that `config` describes, with a progress line for each layer; return the compile report.

    Without an output path nothing is written, and the weights need not exist.
    Raises SettingsError when the output directory is not empty, cannot be written or has too little room, and what
    `open_model` raises.
    """
    source, target = Path(config.model_path), Path(config.output_path).absolute()
    if not config.output_path:
        spec, formats, _ = describe_checkpoint(source, config.requested_formats)
        require_generator(spec)
        return compile_report(config, spec, formats, _buckets(config, spec))
    if is_artifact(source):
        raise SettingsError(f"{source} is compiled already")
    tp, is_expert_parallel = config.tensor_parallel_size, config.enable_expert_parallel
    requested = with_types_of(instance(config.device), config.requested_formats)
    model = open_model(source, requested, tp, config.cpu_threads, is_expert_parallel)
    if model.spec.source is not None:
        raise SettingsError(f"{model.spec.architecture} has an encoder: it is served from its checkpoint")
    buckets = _buckets(config, model.spec)
    report = compile_report(config, model.spec, model.formats, buckets)
    use_cache(config.kernel_cache_dir)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _require_room(target, model, ShardSpec.of(model.spec, tp, is_expert_parallel))
        partial.mkdir()
        try:
            num_bytes = _write(config, model, buckets, partial, on_progress)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise SettingsError(f"output {target} cannot be written: {error.strerror}") from error
    on_progress(f"wrote {_size(num_bytes)} for {config.tensor_parallel_size} core(s) to {target}")
    return report


def _require_room(target: Path, model: ModelSource, shard: ShardSpec) -> None:
    if target.exists() and not target.is_dir():
        raise SettingsError(f"output {target} is a file; a new or empty directory is needed")
    if target.exists() and any(target.iterdir()):
        raise SettingsError(f"output {target} is not empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    needed = shard.tp * packed_weight_bytes(model.spec, shard, model.formats)
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise SettingsError(f"output {target}: the weights take {needed} bytes, the disk has {free} free")


def _buckets(config: CompileConfig, spec: ModelSpec) -> BucketLists:
    """Return the bucket lists. Raises SettingsError for lengths beyond the model's."""
    longest = context_length(config.max_model_len, spec)
    return BucketLists(config.context_encoding_buckets, config.token_generation_buckets).completed(longest)


def _write(
    config: CompileConfig, model: ModelSource, buckets: BucketLists, directory: Path, on_progress: OnProgress
) -> int:
    """Write the artifact, the manifest last; return the bytes of weights."""
    tp, spec = config.tensor_parallel_size, model.spec
    shard = ShardSpec.of(spec, tp, config.enable_expert_parallel)
    capacity = packed_weight_bytes(spec, shard, model.formats)
    cores = [CoreFile(core, directory / core_file(core), capacity) for core in range(tp)]
    WeightLoader(model.source, spec, shard, cores, model.formats).load(on_progress)
    files = [core.close() for core in cores]
    digest = _copy_rest(Path(config.model_path), directory)
    manifest = Manifest(
        neuronserve_version=__version__,
        tensor_parallel_size=tp,
        enable_expert_parallel=config.enable_expert_parallel,
        dtype=model.formats.dtype,
        quantization=model.formats.quantization,
        modules_to_not_convert=model.formats.modules_to_not_convert,
        wide_modules=tuple(sorted(model.formats.wide_modules)),
        from_values=model.formats.from_values,
        group_size=model.formats.groups.size,
        is_symmetric=model.formats.groups.is_symmetric,
        config_sha256=digest,
        model=model_values(spec),
        padded_sizes=padded_sizes(spec, shard),
        buckets=CompiledBuckets(buckets.context_encoding, buckets.token_generation),
        files=files,
    )
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return sum(file.num_bytes for file in files)


def _copy_rest(source: Path, directory: Path) -> str:
    """Copy configuration, tokenizer and chat template; return the SHA-256 of config.json."""
    for pattern in COPIED:
        for path in sorted(source.glob(pattern)):
            if path.is_file() and not path.name.endswith(INDEX_SUFFIX):
                shutil.copyfile(path, directory / path.name)
    return hashlib.sha256((directory / "config.json").read_bytes()).hexdigest()


class CoreFile:
    """A mapped file that is allocated like the memory of a core."""

    def __init__(self, index: int, path: Path, capacity: int) -> None:
        """Reserve `capacity` bytes on the disk. Raises OSError."""
        self.index = index
        self._path, self._used = path, 0
        self._pieces: dict[str, tuple[int, Buffer]] = {}
        with path.open("wb+") as file:
            reserve(file, capacity)
            self._map = np.frombuffer(mmap.mmap(file.fileno(), capacity), np.uint8)

    def allocate(self, use: HostUse, name: str, num_bytes: int) -> Buffer:
        """Return zeroed bytes at the next cache line of the file."""
        del use
        assert name not in self._pieces, name
        begin = round_up(self._used, ALIGNMENT)
        self._used = begin + num_bytes
        buffer = Buffer(self._map[begin : self._used])
        self._pieces[name] = (begin, buffer)
        return buffer

    def close(self) -> CoreEntries:
        """Hash the pieces and truncate the file; return its entries in the manifest."""
        entries = {
            name: Entry(offset, buffer.num_bytes, _sha256(buffer)) for name, (offset, buffer) in self._pieces.items()
        }
        self._pieces.clear()
        os.truncate(self._path, self._used)
        return CoreEntries(self._used, entries)


def _sha256(buffer: Buffer) -> str:
    digest, memory = hashlib.sha256(), buffer.bytes.data
    for begin in range(0, len(memory), CHUNK_BYTES):
        digest.update(memory[begin : begin + CHUNK_BYTES])
    return digest.hexdigest()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:.1f} MiB"


_BLOCK = 1 << 20


def reserve(file: BinaryIO, num_bytes: int, by_call: bool = hasattr(os, "posix_fallocate")) -> None:
    """Extend the file to `num_bytes` with every block on the disk. Raises OSError without room, not a SIGBUS later.

    macOS has no posix_fallocate: zeros are written instead, which takes as long as writing the file.
    """
    if by_call and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return
    zeros = bytes(_BLOCK)
    for begin in range(0, num_bytes, _BLOCK):
        file.write(zeros[: num_bytes - begin])
    file.flush()
    os.fsync(file.fileno())  # a system may accept data without room for it, and report that here
