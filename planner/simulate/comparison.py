"""A deployment that is divided into prompts and decodes, beside the same instances that each do both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from .options import SimulationOptions
from .report import SimulationReport
from .simulator import run_simulation

LEAST = 0.05  # share by which a figure must differ to count


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one layout: milliseconds, and dollars for a million output tokens, idle time included."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    itl_p99: float
    usd_per_million: float | None  # None: nothing was generated
    goodput: float | None  # requests a second within the limits; None: without limits

    @classmethod
    def of(cls, report: SimulationReport) -> Figures:
        """Return the figures of a finished simulation."""
        ttft, tpot, usd = report.spreads["ttft"], report.spreads["tpot"], "usd_per_million_output_tokens_all_in"
        times = ttft.median, ttft.p99, tpot.median, tpot.p99, report.spreads["itl"].p99
        return cls(*times, report.as_json()[usd], report.request_goodput)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A divided deployment and the one that is not."""

    options: SimulationOptions
    divided: Figures
    whole: Figures
    handed: dict[str, int]  # requests, bytes and nanoseconds of copies

    @classmethod
    def of(cls, report: SimulationReport) -> Comparison:
        """Simulate the deployment of a report without division. Raises the errors of `run_simulation`."""
        whole = run_simulation(replace(report.options, disaggregate=None))
        return cls(report.options, Figures.of(report), Figures.of(whole), dict(report.records.handed))

    @property
    def verdict(self) -> str:
        """Say in a line whether the division pays: by requests within the limits, or by the slowest percent."""
        divided, whole, parts = self.divided, self.whole, self.options.disaggregate
        if divided.goodput is not None and whole.goodput is not None:
            gain = divided.goodput / whole.goodput - 1 if whole.goodput else float(divided.goodput > 0)
            within = (
                f"{divided.goodput:.2f} instead of {whole.goodput:.2f} requests/s within the limits for the same price"
            )
            return f"{parts} {_says(gain > LEAST, gain < -LEAST)}: {within}"
        first, token = (_change(divided.ttft_p99, whole.ttft_p99), _change(divided.tpot_p99, whole.tpot_p99))
        price = _change(divided.usd_per_million or 0.0, whole.usd_per_million or 0.0)
        changes = first, token, price
        changed = f"p99 of TTFT {first:+.0%}, of TPOT {token:+.0%}, $ per output token {price:+.0%}"
        return f"{parts} {_says(min(changes) < -LEAST, max(changes) > LEAST)}: {changed}"

    def as_json(self) -> dict[str, Any]:
        """Return the figures of both, the copies, and the verdict."""
        layouts = {name: {key: getattr(each, key) for key in Figures.__slots__} for name, each in self._layouts}
        return {
            "disaggregate": str(self.options.disaggregate),
            **layouts,
            "handed": self.handed,
            "verdict": self.verdict,
        }

    def table(self) -> Table:
        """Return both layouts as rows."""
        table = Table("layout", title=f"Divided and not ({self._copies})")
        for column in ("TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "ITL p99 ms", "$ / 1M output", "good /s"):
            table.add_column(column, justify="right")
        for name, each in self._layouts:
            times = each.ttft_p50, each.ttft_p99, each.tpot_p50, each.tpot_p99, each.itl_p99
            rest = ("-" if value is None else f"{value:,.2f}" for value in (each.usd_per_million, each.goodput))
            table.add_row(name, *(f"{value:,.2f}" for value in times), *rest)
        return table

    @property
    def _layouts(self) -> tuple[tuple[str, Figures], ...]:
        return ("divided", self.divided), ("whole", self.whole)

    @property
    def _copies(self) -> str:
        count = self.handed.get("requests", 0)
        if not count:
            return "nothing was handed over"
        size, ms = self.handed["bytes"] / count / 1e6, self.handed["ns"] / count / 1e6
        return f"{count:,} hand-overs of {size:,.1f} MB and {ms:,.2f} ms on average"


def _says(is_better: bool, is_worse: bool) -> str:
    if is_better:
        return "pays for some and costs others" if is_worse else "pays"
    return "does not pay"


def _change(value: float, before: float) -> float:
    return value / before - 1 if before else 0.0
