"""A deployment that is divided into prompts and decodes, beside the same instances that each do both."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from .report import SimulationReport
from .simulator import run_simulation

LEAST = 0.05  # share by which a figure must differ to count
Figures = dict[str, float]  # by name, as in JSON; a figure that does not exist is left out


@dataclass(frozen=True, slots=True)
class Comparison:
    """A divided deployment and the one that is not."""

    disaggregate: str
    divided: Figures
    whole: Figures
    handed: dict[str, int]  # requests, bytes and nanoseconds of copies

    @classmethod
    def of(cls, report: SimulationReport) -> Comparison:
        """Simulate the deployment of a report without division. Raises the errors of `run_simulation`."""
        whole = run_simulation(replace(report.options, disaggregate=None))
        handed = {name: report.records.handed[name] for name in ("requests", "bytes", "ns")}
        return cls(str(report.options.disaggregate), figures_of(report), figures_of(whole), handed)

    @property
    def verdict(self) -> str:
        """Say in a line whether the division pays: by requests within the limits, or by the slowest percent."""
        good, before = self.divided.get("good_per_s"), self.whole.get("good_per_s")
        if good is not None and before is not None:
            pays = "pays" if good > (1 + LEAST) * before else "does not pay"
            return f"{self.disaggregate} {pays}: {good:.2f} instead of {before:.2f} requests/s within the limits"
        names = {"p99 of TTFT": "ttft_p99_ms", "of TPOT": "tpot_p99_ms", "$ per output token": "usd_per_million"}
        found = {name: self.divided[key] / self.whole[key] - 1 for name, key in names.items() if self.whole.get(key)}
        pays = "pays for some and costs others" if max(found.values(), default=0.0) > LEAST else "pays"
        pays = pays if min(found.values(), default=0.0) < -LEAST else "does not pay"
        return f"{self.disaggregate} {pays}: {', '.join(f'{name} {each:+.0%}' for name, each in found.items())}"

    def show(self, console: Console) -> dict[str, Any]:
        """Print both layouts and the verdict; return them as JSON."""
        size, ms = (self.handed[each] / max(1, self.handed["requests"]) / 1e6 for each in ("bytes", "ns"))
        title = f"{self.handed['requests']:,} hand-overs of {size:,.1f} MB and {ms:,.2f} ms on average"
        table = Table("layout", title=title)
        for key in self.divided:
            table.add_column(key.replace("_", " "), justify="right")
        for layout, figures in (("divided", self.divided), ("whole", self.whole)):
            table.add_row(layout, *(f"{value:,.2f}" for value in figures.values()))
        console.print(table, self.verdict, crop=False)
        return {"disaggregation": asdict(self) | {"verdict": self.verdict}}


def figures_of(report: SimulationReport) -> Figures:
    """Return the figures of a layout; dollars are for a million output tokens, idle time included."""
    spreads = [(name, report.spreads[name]) for name in ("ttft", "tpot", "itl")]
    found = {
        f"{name}_{p}_ms": value for name, each in spreads for p, value in (("p50", each.median), ("p99", each.p99))
    }
    usd, good = report.as_json()["usd_per_million_output_tokens_all_in"], report.request_goodput
    others = {"usd_per_million": usd, "good_per_s": good}
    return found | {name: value for name, value in others.items() if value is not None}
