"""Results as a table and as JSON."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.interleave import CaseResult
from benchmarks.peers import OURS, Installed
from benchmarks.quality_rows import Row
from benchmarks.ratios import Ratio
from benchmarks.records import CAPTION, METRICS, Metric
from neuronserve.loadtests.result import cpu_model, num_cpus, tool_version
from neuronserve.server.host.isa import TARGETS, isas_of
from neuronserve.server.kernels.isa.target import host_features

WIDTH = 140
WIDE_SPREAD = 0.15  # of the ratios; a wider comparison should be repeated


def console() -> Console:
    """Return standard output, wide enough for a table if it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def ratios(result: CaseResult) -> Iterator[tuple[str, Metric, Ratio]]:
    """Yield the ratio of every metric to every peer that finished."""
    if not result.rounds.get(OURS):
        return
    for peer in result.rounds:
        if peer != OURS:
            for metric in METRICS[result.case.kind]:
                yield peer, metric, result.ratio(metric.name, OURS, peer)


def table(results: Sequence[CaseResult], quality: Mapping[str, Row] = {}) -> Table:
    """Return a table with a row for each ratio; a ratio is this engine's value divided by the peer's.

    `quality` has each contender's row of the quality table: its KL divergence and top-1.
    """
    shown = Table(title=f"{OURS} / peer, medians of paired rounds", caption=CAPTION, title_justify="left", box=SIMPLE)
    headings = ("case", "peer", "of", "this", "peer's", "ratio", "interval", "rounds")
    for heading in (*headings, *(("KL, top-1", "peer's KL, top-1") if quality else ())):
        shown.add_column(heading, justify="left" if heading in ("case", "peer", "of") else "right")
    for result in results:
        for peer, metric, ratio in ratios(result):
            shown.add_row(
                result.case.name,
                peer,
                metric.label,
                f"{ratio.ours:,.1f}",
                f"{ratio.theirs:,.1f}",
                f"{ratio.median:.2f}{' (!)' if ratio.spread > WIDE_SPREAD else ''}",
                f"{ratio.low:.2f}-{ratio.high:.2f}" if ratio.coverage else "-",
                str(len(result.rounds[peer])),
                *([quality[name].shown if name in quality else "-" for name in (OURS, peer)] if quality else ()),
            )
    return shown


def notes(results: Sequence[CaseResult]) -> list[str]:
    """Return the notes below the table: figures without a peer, missing contenders and why, wide spreads."""
    lines = []
    for result in results:
        alone = result.rounds.get(OURS, [])
        if alone and len(result.rounds) == 1:
            values = ", ".join(f"{key} {value:,.1f}" for key, value in alone[-1].items())
            lines.append(f"{result.case.name}: {OURS} alone, last round: {values}")
        lines += [f"{skipped.case}: without {skipped.name}: {skipped.reason}" for skipped in result.skipped]
        covered = {ratio.coverage for _, _, ratio in ratios(result)}
        lines += [
            f"{result.case.name}: the intervals hold the median with {each:.1%}" for each in sorted(covered - {0.0})
        ]
        if any(ratio.spread > WIDE_SPREAD for _, _, ratio in ratios(result)):
            lines.append(f"{result.case.name}: (!) ratios spread over more than {WIDE_SPREAD:.0%}: repeat it")
    return lines


def as_json(
    results: Sequence[CaseResult],
    installed: Installed,
    about: dict[str, dict[str, str]],
    quality: Mapping[str, Row] = {},
) -> dict[str, Any]:
    """Return everything: ratios, every round of every contender, the host, and the quality of each."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tool": f"neuronserve benchmarks {tool_version()}",
        "host": f"{platform.system()} {platform.machine()}, {num_cpus()} cores, {cpu_model()}",
        "checkpoint": installed.checkpoint.name,
        "quantization": installed.quantization,
        "threads": installed.threads,
        **_isa_json(installed),
        "contenders": about,
        "quality": {name: asdict(row) for name, row in quality.items()},
        "cases": [_case_json(result) for result in results],
    }


def _isa_json(installed: Installed) -> dict[str, Any]:
    """Return the instruction set of this engine's kernels, and which features the host lacks for each other."""
    host = host_features()
    lacks = {target.isa: list(target.lacks(host)) for target in TARGETS if target.machine == platform.machine()}
    return {
        "isa": installed.isa or isas_of(host)[0],
        "host_lacks": {isa: features for isa, features in lacks.items() if features},
    }


def _case_json(result: CaseResult) -> dict[str, Any]:
    return {
        "case": result.case.name,
        "kind": result.case.kind,
        "size": result.case.size or None,
        "ratios": [
            {"peer": peer, "metric": metric.name, "more_is_better": metric.more_is_better, **ratio.as_json()}
            for peer, metric, ratio in ratios(result)
        ],
        "rounds": result.rounds,
        "skipped": [{"contender": skipped.name, "reason": skipped.reason} for skipped in result.skipped],
    }
