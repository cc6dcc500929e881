"""`bench accuracy`: runs the measurement with a progress bar, prints a table and writes JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..config import EngineConfig
from ..text.tokenizer import load_tokenizer
from .accuracy import REFERENCE, AccuracyBench, FormatAccuracy
from .options import AccuracyOptions
from .results import show, write_results
from .windows import Window, read_documents, windows

DEFINITIONS = {
    "relative_logits_error": "||l - l32|| / ||l32|| over all positions, every row of logits less its mean",
    "p99_relative_logits_error": "the same of single positions, 99th percentile",
    "kl_divergence": "KL(float32 || format) of the next token, mean over all positions, in nats",
    "top1_agreement": "share of positions at which the likeliest token is that of float32",
    "perplexity": "exp of the mean negative log-likelihood of the next token, windows teacher-forced",
    "perplexity_delta": "perplexity divided by that of float32, less 1",
}


def run_accuracy(config: EngineConfig, options: AccuracyOptions) -> None:
    """Measure every format, print a table and write the JSON file where one is named.

    Raises StartError as loading does, and SettingsError for a text that is too short or cannot be read.
    """
    tokenizer = load_tokenizer(Path(config.model_path))
    texts = windows(tokenizer, read_documents(options.text_file), options.num_tokens, options.window_len)
    results = _measure(config, options, texts)
    show(_table(config, results))
    if options.json_file is not None:
        record = {
            "model": config.model_path,
            "num_tokens": options.num_tokens,
            "window_len": options.window_len,
            "reference": REFERENCE,
            "results": [result.as_json() for result in results],
            "definitions": DEFINITIONS,
        }
        write_results(options.json_file, record, config.cpu_threads)


def _measure(config: EngineConfig, options: AccuracyOptions, texts: list[Window]) -> list[FormatAccuracy]:
    console = Console(file=sys.stderr)
    num_engines = 1 + sum(weights != REFERENCE for weights in options.formats)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=num_engines * len(texts))
        report = lambda line: progress.update(task, description=line)  # noqa: E731
        bench = AccuracyBench(config, texts, report, on_window=lambda: progress.advance(task))
        return bench.measure(options.formats)


def _table(config: EngineConfig, results: list[FormatAccuracy]) -> Table:
    title = f"{config.model_path}: {results[0].num_tokens:,} tokens, against {REFERENCE}"
    table = Table(title=title, title_justify="left")
    for heading in ("weights", "logits error %", "p99 %", "KL", "top-1 %", "perplexity", "delta %"):
        table.add_column(heading, justify="left" if heading == "weights" else "right")
    for each in results:
        table.add_row(
            each.weights,
            f"{100 * each.relative_logits_error:.2f}",
            f"{100 * each.p99_relative_logits_error:.2f}",
            f"{each.kl_divergence:.5f}",
            f"{100 * each.top1_agreement:.2f}",
            f"{each.perplexity:.4f}",
            f"{100 * each.perplexity_delta:+.3f}",
        )
    return table
