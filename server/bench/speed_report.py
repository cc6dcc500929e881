"""`bench latency` and `bench throughput`: run the measurement with a progress bar, print a table and write JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..config import EngineConfig
from ..engine.load.loading import LoadedEngine, load_engine
from ..errors import SettingsError
from .drive import EngineDriver
from .options import BatchShape, LatencyOptions, ThroughputOptions
from .results import show, write_results
from .speed import LatencyBench, LatencyResult, ThroughputResult, measure_throughput, tokens_of

Columns = Sequence[tuple[str, str, str]]  # heading, name of the value and its format

LATENCY_COLUMNS = (
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
UNKNOWN = {"decode_bandwidth_fraction": "in cache"}  # cells of figures that are None
THROUGHPUT_COLUMNS = (
    ("sequences", "num_sequences", "{:,d}"),
    ("at once", "batch_size", "{:d}"),
    ("in", "input_len", "{:,d}"),
    ("out", "output_len", "{:,d}"),
    ("prefill", "prefill_tokens_per_s", "{:,.0f}"),
    ("decode", "decode_tokens_per_s", "{:,.1f}"),
    ("output", "output_tokens_per_s", "{:,.1f}"),
    ("total", "total_tokens_per_s", "{:,.0f}"),
    ("seconds", "elapsed_s", "{:,.2f}"),
)


def run_latency(config: EngineConfig, shapes: tuple[BatchShape, ...], options: LatencyOptions) -> None:
    """Load, measure every shape, print a table and write the JSON file if one is named.

    Raises StartError as loading does, and SettingsError for a shape that cannot fit.
    """
    engine, console = _load(config, shapes)
    total = sum((1 + options.num_iters) * tokens_of(shape, shape.batch_size) for shape in shapes)
    with _progress(console, total) as on_tokens:
        bench = LatencyBench(engine, EngineDriver(engine, options.seed, on_tokens))
        results = [bench.measure(shape, options.num_iters) for shape in shapes]
        if options.trace_file is not None:
            console.print(_traced(bench, shapes[0], options.trace_max_events, options.trace_file))
    _report(engine, results, LATENCY_COLUMNS, _latency_title(results[0]), options.json_file)


def run_throughput(config: EngineConfig, shapes: tuple[BatchShape, ...], options: ThroughputOptions) -> None:
    """Load, measure every shape, print a table and write the JSON file if one is named.

    Raises StartError as loading does, and SettingsError for a shape that cannot fit.
    """
    engine, console = _load(config, shapes)
    pairs = [(shape, options.num_prompts or shape.batch_size) for shape in shapes]
    total = sum(tokens_of(w, w.batch_size) + options.num_iters * tokens_of(w, count) for w, count in pairs)
    with _progress(console, total) as on_tokens:
        driver = EngineDriver(engine, options.seed, on_tokens)
        results = [measure_throughput(driver, shape, count, options.num_iters) for shape, count in pairs]
    title = f"tokens/s, medians of {results[0].runs} runs, everything sent at once"
    _report(engine, results, THROUGHPUT_COLUMNS, title, options.json_file)


def _load(config: EngineConfig, shapes: tuple[BatchShape, ...]) -> tuple[LoadedEngine, Console]:
    console = Console(file=sys.stderr)
    return load_engine(_config_for(config, shapes), lambda line: console.print(line, highlight=False)), console


@contextmanager
def _progress(console: Console, num_tokens: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar while a run computes `num_tokens`; the yielded function receives those of each step."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=num_tokens)
        yield lambda count: progress.advance(task, count)


def _config_for(config: EngineConfig, shapes: tuple[BatchShape, ...]) -> EngineConfig:
    """Make room for every shape, and keep no prefix cache between runs."""
    longest = max(w.total_len for w in shapes)
    most = max(config.max_num_seqs, *(w.batch_size for w in shapes))
    return replace(
        config,
        max_model_len=config.max_model_len or longest,
        max_num_seqs=most,
        max_num_batched_tokens=max(config.max_num_batched_tokens, most),
        enable_prefix_caching=False,
    )


def _traced(bench: LatencyBench, shape: BatchShape, max_events: int, file: Path) -> str:
    """Trace one more run. Raises SettingsError when the file cannot be written."""
    try:
        trace = bench.trace(shape, max_events, file)
    except OSError as error:
        raise SettingsError(f"--trace: cannot write {file}: {error.strerror}") from error
    rest = "; there was more than --trace-max-events" if trace.is_truncated else ""
    return f"trace of {trace.num_steps} steps, {trace.num_events} events, in {file}{rest}"


def _latency_title(first: LatencyResult) -> str:
    lengths = f"{first.input_len} in, {first.output_len} out, medians of {first.runs} runs"
    reads, products = f"{first.read_bandwidth_gb_s:.1f} GB/s of reads", f"{first.product_tops:.2f} TOPS"
    return f"{lengths}; {first.matmul_isa} kernels; host: {reads}, {products} of {first.product_unit} products"


def _report(
    engine: LoadedEngine,
    results: Sequence[LatencyResult | ThroughputResult],
    columns: Columns,
    title: str,
    json_file: Path | None,
) -> None:
    """Print the table; write the first shape's figures at the top level of the file and all under `results`."""
    rows: list[dict[str, Any]] = [asdict(result) for result in results]
    table = Table(title=f"{engine.info.notes[0]}\n{title}", title_justify="left")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            *(UNKNOWN.get(name, "-") if row[name] is None else form.format(row[name]) for _, name, form in columns)
        )
    show(table)
    if json_file is not None:
        record = {**rows[0], "results": rows, "engine": asdict(engine.info)}
        write_results(json_file, record, engine.runner.pool.num_threads)
