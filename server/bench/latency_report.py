"""`bench latency`: runs the measurement with a progress bar, prints a table and writes JSON."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from neuronserve.server.bench.latency import LatencyBench, LatencyResult
from neuronserve.server.bench.options import BatchShape, LatencyOptions
from neuronserve.server.bench.results import show, table_of, write_engine_results
from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.errors import SettingsError

COLUMNS = (
    ("batch", "batch_size", "{:d}"),
    ("context", "context_len", "{:,d}"),
    ("prefill tok/s", "prefill_tokens_per_s", "{:,.0f}"),
    ("of products", "prefill_tile_fraction", "{:.1%}"),
    ("decode tok/s", "decode_tokens_per_s", "{:,.1f}"),
    ("of reads", "decode_bandwidth_fraction", "{:.1%}"),
    ("step ms", "decode_step_ms", "{:,.2f}"),
    ("not kernels us", "overhead_us", "{:,.0f}"),
    ("sampling us", "sampling_us", "{:,.0f}"),
    ("of step", "sampling_fraction", "{:.1%}"),
)


def run_latency(config: EngineConfig, shapes: tuple[BatchShape, ...], options: LatencyOptions) -> None:
    """Load, measure every shape, print a table and write the JSON file where one is named.

    Raises StartError as loading does, and SettingsError for a shape that cannot fit.
    """
    console = Console(file=sys.stderr)
    engine = load_engine(config_for(config, shapes), lambda line: console.print(line, highlight=False))
    results = _measure(engine, shapes, options, console)
    show(_table(engine, results))
    if options.json_file is not None:
        write_engine_results(options.json_file, engine, [result.as_json() for result in results])


def config_for(config: EngineConfig, shapes: tuple[BatchShape, ...]) -> EngineConfig:
    """The configuration with room for every shape, and without a prefix cache to carry over between runs."""
    longest = max(w.total_len for w in shapes)
    most = max(config.max_num_seqs, *(w.batch_size for w in shapes))
    return replace(
        config,
        max_model_len=config.max_model_len or longest,
        max_num_seqs=most,
        max_num_batched_tokens=max(config.max_num_batched_tokens, most),
        enable_prefix_caching=False,
    )


def _measure(
    engine: LoadedEngine, shapes: tuple[BatchShape, ...], options: LatencyOptions, console: Console
) -> list[LatencyResult]:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(shapes) * (options.num_iters + 1))
        bench = LatencyBench(engine, options.seed, on_run=lambda: progress.advance(task))
        results = [bench.measure(shape, options.num_iters) for shape in shapes]
        if options.trace_file is not None:
            console.print(_traced(bench, shapes[0], options.trace_max_events, options.trace_file))
        return results


def _traced(bench: LatencyBench, shape: BatchShape, max_events: int, file: Path) -> str:
    """Trace one more run. Raises SettingsError when the file cannot be written."""
    try:
        trace = bench.trace(shape, max_events, file)
    except OSError as error:
        raise SettingsError(f"--trace: cannot write {file}: {error.strerror}") from error
    rest = "; there was more than --trace-max-events" if trace.is_truncated else ""
    return f"trace of {trace.num_steps} steps, {trace.num_events} events, in {file}{rest}"


def _table(engine: LoadedEngine, results: list[LatencyResult]) -> Table:
    first = results[0]
    lengths = f"{first.input_len} in, {first.output_len} out, medians of {first.runs} runs"
    host = (
        f"{first.read_bandwidth_gb_s:.1f} GB/s of reads, {first.product_tops:.2f} TOPS of {first.product_unit} products"
    )
    title = f"{engine.info.notes[0]}\n{lengths}; {first.matmul_isa} kernels; host: {host}"
    return table_of(title, COLUMNS, [result.as_json() for result in results])
