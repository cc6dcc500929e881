"""Report on the graphs that Neuron's compiler would compile for a model, and roughly how long that would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...config import CompileConfig
from ...config.formats import WeightFormats
from ...cost.bucket_edges import ADDED_TOKENS, PromptGraphs
from ...cost.compile_time import WARM, CompileTime, compile_time
from ...cost.model import CostModel, StepCost
from ...cost.shape import stored_dtype
from ...cost.stacks import default_stack
from ...cost.work import Runtime
from ...device.buckets import BucketLists
from ...device.catalog import instance
from ...device.instances import Instance
from ...errors import DeviceError
from ...models.spec import ModelSpec

INT32 = FLOAT32 = 4  # bytes
SAMPLING_PARAMS = 3  # top_k, top_p, temperature
PER_SLOT = 3  # sequence id, adapter id, placeholder of hidden states


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One graph that would be compiled.

    Bytes are those of its inputs and outputs without weights and KV cache, as NxD Inference traces it
    (models/model_wrapper.py, `input_generator`): ids, mask and positions as int32, sampling parameters, and one token
    or, if the host samples, the logits of each slot.
    """

    phase: str  # context encoding or token generation
    batch: int
    positions: int
    tokens: int  # computed in one run
    share: float  # of lengths that this graph serves, if all lengths up to the longest are equally likely
    padding: float  # mean share of padded positions over those lengths
    io_bytes: int
    modelled_s: float | None  # None: the accelerator cannot run it
    extrapolated: str


@dataclass(frozen=True, slots=True)
class CompileReport:
    """All graphs, and the time."""

    device: str
    tensor_parallel_size: int
    graphs: tuple[GraphRow, ...]
    padding: dict[str, float]  # by phase: share of the computed positions that are padding
    time: CompileTime
    warm: str = WARM
    note: str = ""  # why there are no modelled times
    bucket_edge: str = ""  # the costliest edge between two lengths of prompts

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compile_report(
    config: CompileConfig, spec: ModelSpec, formats: WeightFormats, buckets: BucketLists
) -> CompileReport:
    """Make the report on `spec` with these buckets. Raises DeviceError for an unknown accelerator."""
    device, model, note = instance(config.device), None, ""
    try:
        runtime = Runtime(stored_dtype(formats.quantization, formats.dtype))
        model = CostModel.of(spec, device, config.tensor_parallel_size, runtime)
    except DeviceError as error:
        note = f"no modelled times: {error}"
    graphs = (*_prefills(config, spec, buckets, model), *_decodes(config, spec, buckets, model))
    return CompileReport(
        device=config.device,
        tensor_parallel_size=config.tensor_parallel_size,
        graphs=graphs,
        padding={
            "context encoding": _wasted(buckets.context_encoding),
            "token generation": _wasted(buckets.token_generation),
        },
        time=compile_time(spec, config.tensor_parallel_size, len(graphs)),
        note=note,
        bucket_edge="" if model is None else _edge(device, buckets.context_encoding, model),
    )


def _edge(device: Instance, lengths: tuple[int, ...], model: CostModel) -> str:
    """Return advice for prompts as long as one of the compiled lengths, on the usual stack of the device."""
    graphs = PromptGraphs(lengths, default_stack(device.chip.name).prompt_margin, model.prompt_s)
    edges = (graphs.edge({length: 1.0}, ADDED_TOKENS) for length in lengths[:-1])
    return str(max(filter(None, edges), key=lambda edge: edge.saved_ms, default=""))


def _prefills(
    config: CompileConfig, spec: ModelSpec, buckets: BucketLists, model: CostModel | None
) -> Iterator[GraphRow]:
    for length, share, padding in _spread(buckets.context_encoding):
        cost = None if model is None else model.prefill(length, length)
        yield GraphRow(
            "context encoding",
            1,
            length,
            length,
            share,
            padding,
            _io_bytes(config, spec, 1, length, length),
            *_modelled(cost),
        )


def _decodes(
    config: CompileConfig, spec: ModelSpec, buckets: BucketLists, model: CostModel | None
) -> Iterator[GraphRow]:
    for slots in config.neuron.decode_batches or (config.max_num_seqs,):
        for length, share, padding in _spread(buckets.token_generation):
            cost = None if model is None else model.decode(slots, length)
            num_bytes = _io_bytes(config, spec, slots, length, 1)
            yield GraphRow("token generation", slots, length, slots, share, padding, num_bytes, *_modelled(cost))


def _modelled(cost: StepCost | None) -> tuple[float | None, str]:
    return (None, "") if cost is None else (cost.elapsed_s, cost.extrapolated)


def _io_bytes(config: CompileConfig, spec: ModelSpec, batch: int, positions: int, tokens: int) -> int:
    results = spec.vocab_size * FLOAT32 if config.neuron.samples_on_device is False else INT32
    inputs = INT32 * (2 * tokens + positions + PER_SLOT) + FLOAT32 * SAMPLING_PARAMS
    return batch * (inputs + results)


def _spread(buckets: tuple[int, ...]) -> Iterator[tuple[int, float, float]]:
    """Yield each bucket, its share of equally likely lengths up to the longest, and the mean padding of those."""
    before = 0
    for length in buckets:
        mean = (before + 1 + length) / 2
        yield length, (length - before) / buckets[-1], 1 - mean / length
        before = length


def _wasted(buckets: tuple[int, ...]) -> float:
    """Share of padding in all positions computed for equally likely lengths up to the longest."""
    computed = sum(length * share for length, share, _ in _spread(buckets))
    return 1 - (buckets[-1] + 1) / 2 / computed


def render(report: CompileReport) -> Group:
    """Render the tables for a terminal."""
    table = Table(title=f"Graphs for {report.tensor_parallel_size} core(s) of {report.device}")
    for name in ("phase", "batch", "positions", "serves", "padding", "inputs and outputs", "modelled time"):
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for graph in report.graphs:
        mark = "*" if graph.extrapolated else ""
        table.add_row(
            graph.phase,
            str(graph.batch),
            str(graph.positions),
            f"{graph.share:.0%}",
            f"{graph.padding:.0%}",
            f"{graph.io_bytes / 1024:,.1f} KiB",
            "-" if graph.modelled_s is None else f"{graph.modelled_s * 1e3:,.2f} ms{mark}",
        )
    time = report.time
    lines = [
        "lengths spread evenly: "
        + ", ".join(f"{share:.0%} of the positions of {phase} are padding" for phase, share in report.padding.items()),
        f"Neuron's own compiler: about {_minutes(time.seconds)} for {time.graphs} graphs, "
        f"{_minutes(time.low_s)} to {_minutes(time.high_s)} ({time.basis}; nearest: {time.nearest.model}, "
        f"{time.nearest.graphs} graphs, {_minutes(time.nearest.seconds)}); {report.warm}",
    ]
    lines += [f"* {reason}" for reason in dict.fromkeys(graph.extrapolated for graph in report.graphs) if reason]
    return Group(table, *(Text(line) for line in (*lines, report.bucket_edge, report.note) if line))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 600 else f"{seconds / 60:,.1f} min"
