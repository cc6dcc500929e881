"""Facts of an engine that make its figures reproducible: the weights, the compiled shapes, the calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...checkpoint.gguf.directory import linked_eyes, linked_parts
from ...checkpoint.gguf.header import read_header
from ...checkpoint.manifest import MANIFEST, is_artifact
from ...checkpoint.safetensors_file import LENGTH_BYTES
from ...checkpoint.tensor_files import INDEX, WEIGHTS, read_weight_map
from ...config import EngineConfig
from ...config.formats import Pace, WeightFormat, WeightFormats
from ...cost.pricer import Pricer
from ...device.buckets import CompiledShapes
from ...device.core import HOST_USES, NeuronCore
from ...device.ledger import USES, MemoryLedger
from ...device.visible_cores import core_ranges
from ...host.memory import GIB
from ...kernels.dispatch import linear_kernels
from ...link.messages import CoreMemory, EngineFacts, WeightsIdentity
from ...models.spec import ModelSpec
from ...models.tensors import num_params


def weights_identity(directory: Path) -> WeightsIdentity:
    """Return the identity of the weights in `directory`, whose files have been checked."""
    if is_artifact(directory):
        return WeightsIdentity(hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest(), "manifest")
    digest = hashlib.sha256()
    if (directory / INDEX).exists():
        digest.update((directory / INDEX).read_bytes())
    for path, length in _headers(directory):
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + file.read(length))
    return WeightsIdentity(digest.hexdigest(), "headers and sizes")


def _headers(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield each file with weights and the bytes of its header."""
    if parts := linked_parts(directory):
        yield from ((path, read_header(path).num_bytes) for path in (*parts, *linked_eyes(directory)))
        return
    names = sorted(set(read_weight_map(directory).values())) if (directory / INDEX).exists() else [WEIGHTS]
    for path in (directory / name for name in names):
        with path.open("rb") as file:
            yield path, LENGTH_BYTES + int.from_bytes(file.read(LENGTH_BYTES), "little")


def engine_facts(
    directory: Path, spec: ModelSpec, formats: WeightFormats, pricer: Pricer, compiled: CompiledShapes, pace: Pace
) -> EngineFacts:
    """Return the facts of an engine whose model was loaded from `directory`."""
    return EngineFacts(
        architecture=spec.architecture,
        num_params=num_params(spec),
        quantization=formats.quantization,
        groups=formats.groups if formats.quantization in ("int4", "mxfp4") else None,
        modules_to_not_convert=formats.modules_to_not_convert,
        weights=weights_identity(directory),
        config_sha256=hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(),
        compiled=compiled,
        calibration=pricer.calibration,
        extrapolated=pricer.why_extrapolated(),
        pace=pace,
        stack=pricer.stack,
    )


def core_memory(ledger: MemoryLedger, core: int) -> CoreMemory:
    """Return the memory of one core in the ledger, by use."""
    used: dict[str, int] = {use: ledger.reserved_bytes(core, use) for use in USES}
    return CoreMemory(used, ledger.budget_bytes, ledger.capacity_bytes)


def host_bytes(cores: Sequence[NeuronCore]) -> dict[str, int]:
    """Return the bytes of the emulation's own buffers for all cores, by use."""
    return {use: sum(core.used[use] for core in cores) for use in HOST_USES}


def memory_notes(
    config: EngineConfig,
    core_ids: Sequence[int],
    ledger: MemoryLedger,
    host_memory: Mapping[str, int],
    weights: WeightFormat,
) -> tuple[str, str]:
    """Return lines about used device and host memory, which are shown once at start."""
    fullest, least = (ledger.reserved_bytes(core) for core in (0, ledger.num_cores - 1))
    where = "each" if fullest == least else "the first"
    cpus = f" on CPU {', '.join(map(str, config.cpus))}" if config.cpus else ""
    return (
        f"{config.device}, NeuronCore {core_ranges(core_ids)}: {fullest / GIB:.2f} of "
        f"{ledger.budget_bytes / GIB:.2f} GiB used on {where}",
        f"host: {sum(host_memory.values()) / GIB:.2f} GiB for all cores, {config.cpu_threads} thread(s){cpus}, "
        f"{linear_kernels(weights).isa} kernels",
    )
