"""What is known of a plan's configurations on the real parts, as words beside what fits by arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neuronserve.planner.plan.report import Candidate, PlanReport
from neuronserve.server.device.support import Outcome, chip_status

WORDS: dict[Outcome, str] = {"known to run": "yes", "known not to run": "no", "not known": "?"}
CAPTION = "runs: whether the model is known to run on this instance and TP, ? where no report was found"


def notes(report: PlanReport, rows: Iterable[Candidate]) -> Iterator[str]:
    """Sources of what is known of the rows, then the support of their parts: once, behind those that it is about."""
    about: dict[str, list[str]] = {}
    rows, verdicts = list(rows), report.verdicts
    for device, tp, pp in dict.fromkeys(row.place for row in rows):
        found = verdicts[device, tp, pp]
        place = f"{device} TP {tp}{f' PP {pp}' * (pp > 1)}"
        if found.outcome != "not known":
            sources = "; ".join(fact.statement for fact in found.facts)
            about.setdefault(f"{found.outcome} (SDK {found.release}): {sources}", []).append(place)
        for fact in found.limits:
            about.setdefault(fact.statement, []).append(place)
    for chip in dict.fromkeys(report.part(row.device).chip.name for row in rows):
        release, status = chip_status(chip)
        for fact in status:
            about.setdefault(f"under SDK {release}: {fact.statement}", []).append(chip)
    return (f"{', '.join(places)}: {what}" for what, places in about.items())
