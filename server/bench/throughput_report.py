"""`bench throughput`: runs the measurement with a progress bar, prints a table and writes JSON."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from server.bench.latency_report import config_for
from server.bench.options import ThroughputOptions, Workload
from server.bench.results import show, table_of, write_engine_results
from server.bench.throughput import ThroughputBench, ThroughputResult, tokens_of
from server.config import EngineConfig
from server.engine.load.loading import LoadedEngine, load_engine

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


def run_throughput(config: EngineConfig, workloads: tuple[Workload, ...], options: ThroughputOptions) -> None:
    """Load, measure every workload, print a table and write the JSON file where one is named.

    Raises StartError as loading does, and SettingsError for a workload that cannot fit.
    """
    console = Console(file=sys.stderr)
    engine = load_engine(config_for(config, workloads), lambda line: console.print(line, highlight=False))
    results = _measure(engine, workloads, options, console)
    show(_table(engine, results))
    if options.json_file is not None:
        write_engine_results(options.json_file, engine, [result.as_json() for result in results])


def _measure(
    engine: LoadedEngine, workloads: tuple[Workload, ...], options: ThroughputOptions, console: Console
) -> list[ThroughputResult]:
    counts = [options.num_prompts or workload.batch_size for workload in workloads]
    pairs = list(zip(workloads, counts, strict=True))
    total = sum(tokens_of(w, w.batch_size) + options.num_iters * tokens_of(w, count) for w, count in pairs)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        bench = ThroughputBench(engine, options.seed, on_tokens=lambda count: progress.advance(task, count))
        return [bench.measure(workload, count, options.num_iters) for workload, count in pairs]


def _table(engine: LoadedEngine, results: list[ThroughputResult]) -> Table:
    title = f"{engine.info.notes[0]}\ntokens/s, medians of {results[0].runs} runs, everything sent at once"
    return table_of(title, COLUMNS, [result.as_json() for result in results])
