"""GET /inventory, also logged as JSON at start: everything needed to reproduce a measurement."""

from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from platform import machine, python_version
from typing import Any

from fastapi import APIRouter

from ... import __version__
from ...device.catalog import instance
from ...link.messages import EngineInfo
from ..http.openapi import errors_of
from ..service import ServedModel, Service, ServiceOf
from ..tools.plan import chosen_parsers

LIBRARIES = ("numpy", "numba", "llvmlite", "tokenizers", "transformers")  # those that can change a token
router = APIRouter()


@router.get("/inventory", responses=errors_of(503))
async def get_inventory(service: ServiceOf) -> dict[str, Any]:
    """Description of the server: model, accelerator, compiled shapes, versions, price and calibration."""
    return inventory(service)


def inventory(service: Service) -> dict[str, Any]:
    """Return the inventory of a ready server. Raises EngineDead or Unavailable when it is not ready."""
    model = service.model
    info, facts = model.info, model.info.facts
    return {
        "model": {
            "names": list(service.config.model_names),
            "architecture": facts.architecture,
            "num_params": facts.num_params,
            "config_sha256": facts.config_sha256,
            "weights": asdict(facts.weights),
            "dtype": info.dtype,
            "quantization": facts.quantization,
            "quantization_groups": None if facts.groups is None else asdict(facts.groups),
            "modules_to_not_convert": list(facts.modules_to_not_convert),
        },
        "adapters": [{"name": each.name, "sha256": each.digest, "rank": each.rank} for each in service.adapters.loaded],
        "device": _device(info, len(service.engine.infos)),
        "compiled": {
            "stack": facts.stack,
            "batching": facts.compiled.batching,
            "max_model_len": info.max_model_len,
            "max_num_seqs": facts.compiled.slots,
            "context_encoding_buckets": list(facts.compiled.context_encoding),
            "token_generation_buckets": list(facts.compiled.token_generation),
            "kv_cache_blocks": info.cache.num_blocks,
            "kv_cache_groups": [{"window": span.window, "is_chunked": span.is_chunked} for span in info.cache.groups],
            "block_size": info.cache.block_size,
            "enable_prefix_caching": info.cache.enable_prefix_caching,
        },
        "pooling": None if info.pooling is None else asdict(info.pooling),
        "kernels": info.kernels,
        "memory": _memory(info),
        "parsers": _parsers(service),
        "time": {"pace": facts.pace, "calibration": facts.calibration, "extrapolated": list(facts.extrapolated)},
        "price": _price(model),
        "faults": None,
        **{name: value for addition in service.config.additions for name, value in addition.describe().items()},
        "versions": _versions(),
    }


def _device(info: EngineInfo, num_engines: int) -> dict[str, Any]:
    part = instance(info.device)
    return {
        "instance": part.name,
        "chip": part.chip.name,
        "num_cores": part.num_cores,
        "num_instances": info.num_instances,
        "cores_used": info.num_cores * num_engines,
        "tensor_parallel_size": info.tensor_parallel_size,
        "pipeline_parallel_size": info.pipeline_parallel_size,
        "data_parallel_size": num_engines,
    }


def _parsers(service: Service) -> dict[str, str]:
    template = service.model.template
    tools, reasoning = chosen_parsers(service.config, template.source if template else None)
    return {"tool_calls": tools, "reasoning": reasoning}


def _memory(info: EngineInfo) -> dict[str, Any]:
    """Return both memory accounts in bytes: of one core of the accelerator, and of the host for all engines."""
    core = info.memory[0] if info.memory else None
    on_core = None if core is None else {**core.used, "budget": core.budget, "capacity": core.capacity}
    return {"core": on_core, "host": info.host_memory}


def _price(model: ServedModel) -> dict[str, Any]:
    """Return the price of the instance; `usd_per_hour` is None when it is unknown, and no dollars are charged."""
    rate = model.rate
    return {"usd_per_hour": rate.usd_per_hour, "basis": rate.basis, "date": rate.date, "source": rate.source}


@cache
def _versions() -> dict[str, str]:
    own = {"neuronserve": __version__, "python": python_version(), "machine": machine()}
    return own | {name: version(name) for name in LIBRARIES}
