"""The page of `neuronserve validate`: what a platform engineer should know of the predictions before money is spent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import get_args

from ...server.cost.calibration import Calibration
from ...server.cost.evidence import HELD, Phase
from ...server.device.chips import CHIPS
from ..calibrate.accuracy import Accuracy, accuracy_of, outcomes
from ..calibrate.comparison import Figure, phase_of
from .document import Fold, Section, Table
from .noise import MONTHS, RELEASES, SOURCES
from .plot import drawn
from .releases import ALL, Release, releases
from .report import Validation
from .tables import NONE, accuracies, fit_errors, history, left_outs, measured, noise, percent, with_interval

FEW = 3  # series, below which an error says little
MARGIN = 0.05  # by which the share of rows within a band may differ from the promised one
COMMON = 15  # reasons for not comparing rows that are listed

PHASES = {  # of figures, and of samples
    ALL: "all figures",
    "decode": "decode steps",
    "prefill": "prompts",
    "encode": "passes of encoders",
    "encoder_decoder": "answers of encoders with decoders",
    "serving": "tokens a second under load",
    "serving_itl": "time per token under load",
    "serving_ttft": "time to first token under load",
    "throughput": "tokens a second under load",
    "itl": "time per token under load",
    "ttft": "time to first token under load",
}


def sections(found: Validation) -> list[Section]:
    """Return the whole page, with every figure."""
    release = found.release()
    return [
        Section("In short", (_provenance(found, release),), tuple(short(release)), svg=drawn(found.figures)),
        unseen(release),
        seen(release),
        left_out(release),
        at_fit(found.calibration),
        what_is_measured(found.calibration),
        repeated(release),
        Section("Every figure, by group and series", (SERIES,), folds=tuple(_groups(found.figures))),
        earlier(_with(release)),
        Section("What is not known", items=tuple(unknown(release, found.calibration))),
        Section("What was not compared", table=_reasons(found.skipped)),
    ]


def summary(release: Release, calibration: Calibration) -> dict[str, Section]:
    """Return the sections that follow from what is kept of a release, by the names of their places in the docs."""
    return {
        "short": Section("In short", items=tuple(short(release))),
        "unseen": unseen(release),
        "left_out": left_out(release),
        "releases": earlier(releases()[:-1]),  # the last one is the page's
        "unknown": Section("What is not known", items=tuple(unknown(release, calibration))),
    }


SERIES = "A series has the figures of one source, release of the SDK and model."


def _provenance(found: Validation, release: Release) -> str:
    seen = sum(each.is_seen for each in found.figures)
    return (
        f"Calibration {release.calibration} on {found.table} (SHA-256 {found.table_sha256[:12]}): {len(found.figures)} "
        f"published figures, of which the fit has seen {seen}. Errors are (predicted - measured) / measured, intervals "
        f"are of 90 %, by resampling of series. {SERIES} A band should hold 80 % of measurements."
    )


def short(release: Release) -> list[str]:
    """Return the sentences that everyone should read."""
    earlier_ones = [each for each in releases() if each.calibration != release.calibration]
    return [*_unseen_sentences(release), *_past_sentences(earlier_ones), *_noise_sentences(release)]


def _past_sentences(found: Sequence[Release]) -> Iterable[str]:
    """Yield how releases erred on figures published after them, beside what their own fits had promised."""
    for release in found:
        for phase in ("decode", "prefill"):
            left, later = release.left_out.get(phase), release.totals.get(phase)
            if left and later and later.unseen:
                yield (
                    f"Left-out errors flatter too: release {release.name} had {percent(left.by_series.mean)} on series "
                    f"left out of its fit, {PHASES[phase]}, and {percent(later.unseen.by_series.mean)} on "
                    f"{later.unseen.series} series that it met later."
                )


def _unseen_sentences(release: Release) -> Iterable[str]:
    for phase, each in release.totals.items():
        if each.unseen is not None:
            yield f"Series that no fit has seen, {PHASES.get(phase, phase)}: {_sentence(each.unseen)}"
    for phase, left in release.left_out.items():
        if phase in PHASES:
            yield f"Series left out of the fit, {PHASES[phase]}: {_sentence(left)}"


def _sentence(found: Accuracy) -> str:
    band = "no band" if found.within is None else f"the band holds {percent(found.within.rows)} of the rows"
    return (
        f"half of {found.series} within {percent(found.by_series.median)}, nine of ten within "
        f"{percent(found.by_series.p90)}; mean by series {with_interval(found.by_series.mean, found.series_interval)}, "
        f"by row {with_interval(found.by_row.mean, found.row_interval)}; {band}."
    )


def _noise_sentences(release: Release) -> Iterable[str]:
    steps = [each for each in release.spreads if each.phase in ("decode", "prefill")]
    found = {kind: [each for each in steps if each.between == kind] for kind in (MONTHS, RELEASES, SOURCES)}
    for kind, own in found.items():
        if own:
            weights = [each.mean for each in own for _ in range(each.pairs)]
            medians = [each.median for each in own for _ in range(each.pairs)]
            typical = f"{percent(mean(weights))} on average (median {percent(median(medians))})"
            yield f"Published steps of one setup differ by {typical} between {kind}."
    left = [each for each in release.scatters if each.phase in ("decode", "prefill")]
    if left:
        share = sum(each.error * each.rows for each in left) / sum(each.rows for each in left)
        yield f"Steps would still err by {percent(share)} if each series had a constant of its own."
    if own := found[SOURCES]:
        least = max(each.least_error for each in own)
        yield (
            f"So rows are clustered, and errors by row flatter: a step of an unseen source that is predicted to better "
            f"than about {percent(least)} is luck."
        )


def unseen(release: Release) -> Section:
    """Return the errors on series that the fit has not seen."""
    title, table = "Series that the fit had not seen", accuracies(release, "unseen")
    if not table.rows:
        return Section(title, ("The fit has seen all series of the table.",))
    return Section(title, ("As shipped; plain models by the mean of their rows.",), table=table)


def seen(release: Release) -> Section:
    """Return the errors on series that the fit has seen."""
    text = "As shipped, on series that took part in the fit: this flatters."
    return Section("Series that the fit has seen", (text,), table=accuracies(release, "seen"))


def left_out(release: Release) -> Section:
    """Return the errors of fits without the predicted part."""
    text = "Terms and coefficients found again without the predicted series, as the calibration keeps them."
    return Section("Left out of the fit", (text,), table=left_outs(release))


def at_fit(calibration: Calibration) -> Section:
    """Return the errors that the fit stored: by left-out part, and of plain models."""
    text = "Median / 90th percentile of sizes, and the bias; plain models without the predicted series."
    return Section("Errors found by the fit", (text,), table=fit_errors(calibration))


def what_is_measured(calibration: Calibration) -> Section:
    """Return the ranges of the measured configurations."""
    return Section("What is measured", table=measured(calibration))


def repeated(release: Release) -> Section:
    """Return how far published figures of one setup differ."""
    text = "How much greater one of two published figures of one setup is: of the same work in the same graph. A "
    text += "prediction between the two misses both by about half of that, and no model can do better."
    return Section("Repeated measurements", (text,), table=noise(release))


def earlier(found: Sequence[Release]) -> Section:
    """Return the accuracy of releases beside each other."""
    text = "The fidelity of a release is the error that half of the series stay within, on series it had not seen."
    return Section("Releases", (text,), table=history(found))


def _with(release: Release) -> Sequence[Release]:
    """Return the kept releases, and the given one if it is not among them."""
    kept = releases()
    is_kept = any((each.calibration, each.table_sha256) == (release.calibration, release.table_sha256) for each in kept)
    return kept if is_kept else (*kept, replace(release, name=f"{release.name}, this table"))


def _groups(figures: Sequence[Figure]) -> Iterable[Fold]:
    for group in sorted({each.group for each in figures}):
        own = [each for each in figures if each.group == group]
        names = sorted({each.series for each in own})
        folds = tuple(_series(name, [each for each in own if each.series == name]) for name in names)
        yield Fold(f"{group}: {_line(own)}", folds=folds)


def _series(name: str, own: Sequence[Figure]) -> Fold:
    kind = "seen" if all(each.is_seen for each in own) else "not seen"
    head = ("row", "setup", "published", "predicted", "error", "P10 to P90", "provenance")
    return Fold(f"{name} ({kind}): {_line(own)}", Table(head, tuple(_row(each) for each in own)))


def _line(own: Sequence[Figure]) -> str:
    found = accuracy_of(outcomes(own))
    if found is None:
        return NONE
    band = "" if found.within is None else f", band holds {percent(found.within.rows)}"
    return f"{found.rows} figures, mean error {percent(found.by_row.mean)}, bias {found.by_row.bias:+.0%}{band}"


def _row(figure: Figure) -> tuple[str, ...]:
    times = (f"{value:.4g} {figure.unit}" for value in (figure.measured, figure.predicted))
    if figure.band is None:
        return figure.row_id, figure.label, *times, f"{figure.error:+.1%}", NONE, NONE
    low, high = (f"{figure.predicted * factor:.4g}" for factor in (figure.band.low, figure.band.high))
    return figure.row_id, figure.label, *times, f"{figure.error:+.1%}", f"{low} to {high}", figure.band.provenance


def unknown(release: Release, calibration: Calibration) -> Iterable[str]:
    """Return what the figures do not show."""
    points = [each.point for each in calibration.evidence.samples]
    measured_on = {(each.phase, each.chip) for each in points}
    for chip in CHIPS:
        if missing := [PHASES[phase] for phase in get_args(Phase) if (phase, chip.name) not in measured_on]:
            yield f"Not measured on {chip.name}, formulas and the data sheet alone: {', '.join(missing)}."
    few = [name for name, each in release.left_out.items() if each.series < FEW]
    if few:
        yield f"Errors that rest on fewer than {FEW} series say little: {'; '.join(few)}."
    shares = {name: each.within.rows for name, each in _judged(release).items() if each and each.within}
    narrow = [f"{name} {percent(share)}" for name, share in shares.items() if share < HELD - MARGIN]
    wide = [f"{name} {percent(share)}" for name, share in shares.items() if share > HELD + MARGIN]
    for what, found in (("fewer", narrow), ("more", wide)):
        if found:
            shown = "; ".join(found) if found is narrow else f"{len(found)} of {len(shares)} groups"
            yield f"Bands that hold {what} rows than the promised {HELD:.0%}: {shown}."
    bare = sorted({phase_of(name) for name, each in release.groups.items() if not _has_band(each)})
    if bare:
        yield f"Figures without a band: {', '.join(PHASES.get(name, name) for name in bare)}."
    yield "Terms and bands were designed with these figures in view: only figures published later are a full test."
    yield "Published figures are of the few models and lengths that someone measured, mostly of setups that ran well."


def _judged(release: Release) -> dict[str, Accuracy | None]:
    """Return the accuracies of unseen and left-out figures that enough series say something about."""
    found = {f"{name} (unseen)": each.unseen for name, each in release.groups.items()} | release.left_out
    return {name: each for name, each in found.items() if each and each.series >= FEW}


def _has_band(each: object) -> bool:
    return any(getattr(each, name) and getattr(each, name).within for name in ("seen", "unseen"))


def _reasons(skipped: Sequence[tuple[str, str]]) -> Table:
    """Return the most common reasons; numbers in them do not tell two apart."""
    counts = Counter(re.sub(r"\d[\d,.]*", "N", reason) for _, reason in skipped)
    listed = counts.most_common(COMMON)
    rest = counts.total() - sum(count for _, count in listed)
    rows = [(reason, str(count)) for reason, count in listed] + [("other reasons", str(rest))] * bool(rest)
    return Table(("reason", "rows"), tuple(rows))
