"""A plan as text for a terminal of any width: the recommendation, then tables. Formats only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...server.device.prices import PriceBasis
from ...server.device.support import chip_status
from .check import Agreement
from .columns import Column, band, dollars, figure, milliseconds, prose, table_of
from .recommendation import first_lines, question, serve_command
from .report import Candidate, Excluded, PlanReport, TokenPrice

NUM_ROWS = 20  # of each table
WIDE = 240  # characters: room for all columns
KNOWN_BY = {"measured": "measured", "interpolated": "interpol.", "formula": "formula"}
WEIGHTS = {"bfloat16": "bf16"}
CAPTION = (
    "by: the evidence for a time; P10-P90: the range of eight of ten measurements of such steps, 51+ without an upper "
    "bound; "
)
RUNS_CAPTION = (
    "runs: whether the model is known to run on this instance and TP; likely: reported on another instance of the "
    "chip; ? if no report was found; * if something must be done first"
)


def render(report: PlanReport, width: int = WIDE, is_wide: bool = False, num_rows: int = NUM_ROWS) -> Group:
    """Return the recommendation, then the best batch of each device, degree and weight type, by limits held or missed.

    Tables have the columns that fit into `width` characters. `is_wide` adds a table of excluded configurations.
    """
    best = best_batches(report.candidates)
    meeting = [candidate for candidate in best if candidate.meets_slo]
    missing = [candidate for candidate in best if not candidate.meets_slo]
    parts: list[RenderableType] = [*_first_lines(report)]
    if meeting:
        title = "Within the limits, sorted by cost; rows by formula are sized at P90 of their step times"
        parts += [table_of(title, _columns(report, meeting), meeting[:num_rows], width), *_more(meeting, num_rows)]
        parts += [Text(f"{CAPTION}{RUNS_CAPTION}; $ by the {report.options.price_basis} price\n")]
    if missing:
        parts += [_misses(report, missing[:num_rows]), *_more(missing, num_rows), ""]
    if is_wide and report.excluded:
        parts += [_excluded(report.excluded[:num_rows]), *_more(report.excluded, num_rows)]
    elif report.excluded:
        parts.append(Text(_summary(report.excluded)))
    shown = [*meeting[:num_rows], *missing[:num_rows]]
    notes = chain(_reasons(shown), run_notes(report, shown), report.notes)
    return Group(*parts, "", *(prose(f"- {note}", width) for note in notes))


def _first_lines(report: PlanReport) -> Iterator[Text]:
    head, runs, *rest = first_lines(report)
    yield Text(head, style="bold")
    yield Text(runs, style="" if report.candidates[0].running.rank == 0 else "bold red")
    yield from map(Text, rest)
    if command := serve_command(report):
        yield Text(f"\nTry it here, at its pace:\n{command}\n", no_wrap=True)
    yield Text(f"{question(report)}\n")


def best_batches(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the first candidate, which is the best, of each device, degree and type; others differ only in batch."""
    found: dict[tuple[object, ...], Candidate] = {}
    for row in candidates:
        found.setdefault((row.device, row.lnc, row.instances_per_replica, row.tp, row.pp, row.dtype), row)
    return list(found.values())


def _columns(report: PlanReport, rows: Sequence[Candidate]) -> list[Column[Candidate]]:
    """Return all columns in their order. Rank 0 has the essential ones."""
    basis = report.options.price_basis
    other: PriceBasis = "reserved" if basis == "on_demand" else "on_demand"
    return [
        *_configuration(report, rows),
        Column("runs", _runs, 1),
        Column("GiB\n/core", lambda row: f"{row.memory_bytes / 2**30:.1f}", 4),
        Column("load", lambda row: f"{row.load:.0%}", 2),
        Column("count", lambda row: str(row.instances)),
        Column("$/h", _price(basis, lambda price: dollars(price.hourly_usd))),
        Column(f"$/h\n{other}", _price(other, lambda price: dollars(price.hourly_usd)), 4),
        Column("$/1M\nin", _price(basis, lambda price: figure(price.input_usd)), 3),
        Column("$/1M\nout", _price(basis, lambda price: figure(price.output_usd))),
        Column("full:\n$/1M", lambda row: figure(None if (at := row.at_capacity[basis]) is None else at.output_usd), 4),
        *_carbon(rows),
        Column("max\ntok/s", lambda row: figure(row.saturated_output_tokens_s), 3),
        Column("TTFT\nms", lambda row: milliseconds(row.ttft_s)),
        Column("TTFT\nP10-P90", lambda row: band(*row.known.ttft_s), 1),
        Column("TTFT\nby", lambda row: KNOWN_BY[row.known.prefill.provenance], 1, is_text=True),
        *(Column(f"{name}\nms", _quantile(name), 4) for name in rows[0].quantiles_s),
        Column("TPOT\nms", lambda row: milliseconds(row.tpot_s)),
        Column("TPOT\nP10-P90", lambda row: band(*row.known.tpot_s)),
        Column("TPOT\nby", lambda row: KNOWN_BY[row.known.decode.provenance], is_text=True),
    ]


def _carbon(rows: Sequence[Candidate]) -> Iterator[Column[Candidate]]:
    if rows[0].grams_per_million_tokens is not None:
        yield Column("gCO2e\n/1M", lambda row: figure(row.grams_per_million_tokens), 1)


def _configuration(report: PlanReport, rows: Sequence[Candidate]) -> Iterator[Column[Candidate]]:
    yield Column("device", report.label, is_text=True)
    yield Column("TP", lambda row: str(row.tp))
    if any(row.pp > 1 for row in rows):
        yield Column("PP", lambda row: str(row.pp))
    yield Column("DP", lambda row: str(row.dp), 2)
    yield Column("type", lambda row: WEIGHTS.get(row.dtype, row.dtype), is_text=True)
    yield Column("batch", lambda row: str(row.batch))
    yield Column("stack", lambda row: row.stack, 3, is_text=True)


def _price(basis: PriceBasis, shown: Callable[[TokenPrice], str]) -> Callable[[Candidate], str]:
    return lambda row: "unknown" if (price := row.at_rate[basis]) is None else shown(price)


def _runs(row: Candidate) -> str:
    return row.running.runs + "*" * bool(row.running.blockers)


def _quantile(name: str) -> Callable[[Candidate], str]:
    return lambda row: milliseconds(row.quantiles_s[name])


def _misses(report: PlanReport, rows: Sequence[Candidate]) -> Table:
    table = Table("device", "TP", "PP", "DP", "type", "batch", "runs", "why not", title="Fits, but misses the limits")
    for row in rows:
        numbers = map(str, (row.tp, row.pp, row.dp, WEIGHTS.get(row.dtype, row.dtype), row.batch))
        table.add_row(report.label(row), *numbers, _runs(row), "; ".join(row.misses))
    return _unbroken(table)


def _excluded(rows: Iterable[Excluded]) -> Table:
    table = Table("device", "TP", "PP", "type", "why not", title="Excluded")
    for row in rows:
        table.add_row(
            row.device, str(row.tp or "any"), str(row.pp), WEIGHTS.get(row.dtype or "", row.dtype or "any"), row.reason
        )
    return _unbroken(table)


def _unbroken(table: Table) -> Table:
    """Wrap lines only in the last column, which is prose."""
    table.box, table.show_edge, table.padding, table.title_justify = box.SIMPLE_HEAD, False, (0, 1, 0, 0), "left"
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


def _summary(excluded: Sequence[Excluded]) -> str:
    lacking = sum(entry.lacks_bytes is not None for entry in excluded)
    counted = {"for memory": lacking, "for other reasons": len(excluded) - lacking}
    why = ", ".join(f"{count} {reason}" for reason, count in counted.items() if count)
    return f"{len(excluded)} configurations are excluded, {why}; --wide lists them"


def _more(rows: Sequence[object], shown: int) -> list[str]:
    return [f"... and {len(rows) - shown} more; --json has all"] if len(rows) > shown else []


def _reasons(rows: Iterable[Candidate]) -> Iterator[str]:
    """Return each reason why no measurement supports rows, with the rows' places behind it."""
    about: dict[str, dict[str, None]] = {}
    for row in rows:
        for reason in filter(None, row.extrapolated.split("; ")):
            about.setdefault(reason, {})[f"{row.device} TP{row.tp}"] = None
    return (f"formula only, {reason} ({', '.join(places)})" for reason, places in about.items())


def render_check(check: Sequence[Agreement]) -> Table | str:
    """Return a table of the chosen configuration, planned beside simulated."""
    if not check:
        return "nothing to simulate: no configuration holds the limits, or the first cannot be simulated"
    table = Table("mean", "planned", "simulated", "plan is off by", title="The first row, simulated")
    for one in check:
        table.add_row(one.name, f"{one.planned:.4g}", f"{one.simulated:.4g}", f"{one.error:+.1%}")
    return table


def run_notes(report: PlanReport, rows: Iterable[Candidate]) -> Iterator[str]:
    """Return each source on whether rows run, then the support of their chips, with the places it applies to."""
    about: dict[str, list[str]] = {}
    rows, verdicts = list(rows), report.verdicts
    for row in {row.place: row for row in rows}.values():
        found, running = verdicts[row.place], row.running
        place = f"{row.device} TP {row.tp}{f' PP {row.pp}' * (row.pp > 1)}{f' {row.dtype}' * (row.dtype != 'bfloat16')}"
        if found.outcome != "not known":
            sources = "; ".join(fact.statement for fact in found.facts)
            about.setdefault(f"{found.outcome} (SDK {found.release}): {sources}", []).append(place)
        for blocker in running.blockers:
            about.setdefault(blocker, []).append(place)
    for chip in dict.fromkeys(report.part(row.device).chip.name for row in rows):
        release, status = chip_status(chip)
        for fact in status:
            about.setdefault(f"under SDK {release}: {fact.statement}", []).append(chip)
    return (f"{', '.join(places)}: {what}" for what, places in about.items())
