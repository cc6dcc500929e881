"""`bench throughput`: runs the measurement with a progress bar, prints a table and writes JSON."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from neuronserve.server.bench.latency_report import config_for
from neuronserve.server.bench.options import BatchShape, ThroughputOptions
from neuronserve.server.bench.results import show, table_of, write_engine_results
from neuronserve.server.bench.throughput import ThroughputBench, ThroughputResult, tokens_of
from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine

COLUMNS = (
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


def run_throughput(config: EngineConfig, shapes: tuple[BatchShape, ...], options: ThroughputOptions) -> None:
    """Load, measure every shape, print a table and write the JSON file where one is named.

    Raises StartError as loading does, and SettingsError for a shape that cannot fit.
    """
    console = Console(file=sys.stderr)
    engine = load_engine(config_for(config, shapes), lambda line: console.print(line, highlight=False))
    results = _measure(engine, shapes, options, console)
    show(_table(engine, results))
    if options.json_file is not None:
        write_engine_results(options.json_file, engine, [result.as_json() for result in results])


def _measure(
    engine: LoadedEngine, shapes: tuple[BatchShape, ...], options: ThroughputOptions, console: Console
) -> list[ThroughputResult]:
    counts = [options.num_prompts or shape.batch_size for shape in shapes]
    pairs = list(zip(shapes, counts, strict=True))
    total = sum(tokens_of(w, w.batch_size) + options.num_iters * tokens_of(w, count) for w, count in pairs)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        bench = ThroughputBench(engine, options.seed, on_tokens=lambda count: progress.advance(task, count))
        return [bench.measure(shape, count, options.num_iters) for shape, count in pairs]


def _table(engine: LoadedEngine, results: list[ThroughputResult]) -> Table:
    title = f"{engine.info.notes[0]}\ntokens/s, medians of {results[0].runs} runs, everything sent at once"
    return table_of(title, COLUMNS, [result.as_json() for result in results])
