"""Load tests that contradict their own table: faster than it measures the same compiled graph. Judges no prediction.

One published series (Llama-2-7B on TP12, more than one user) gave its users a token in 17 ms, on a graph whose
step takes 32 ms by the same source, and more tokens a second than that graph gives when all slots are always full.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.planner.calibrate.observation import Unusable, shape_of
from server.planner.calibrate.published import PublishedRow

TOLERANCE = 0.8  # of a step's time: how much faster a token may come and still be the same within noise

_GRAPH = ("tp", "batch_size", "max_seq_len")


def contradictions(rows: Sequence[PublishedRow]) -> dict[str, str]:
    """Row ids of load tests with the reason."""
    static: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in rows:
        if row.label("arrival") == "static batch" and "optimum" in row.label("framework"):
            static.setdefault(_graph(row), []).append(row)
    found = {}
    for row in rows:
        if row.label("arrival") not in ("static batch", "single", ""):
            reason = _reason(row, static.get(_graph(row), []))
            if reason:
                found[row.row_id] = reason
    return found


def _graph(row: PublishedRow) -> tuple[object, ...]:
    """Key that measurements of one compiled graph share; unique when the row does not state its graph."""
    try:
        shape = shape_of(row)
    except Unusable:
        return (row.row_id,)
    sizes = tuple(row.counts.get(name) for name in _GRAPH)
    return (row.row_id,) if None in sizes else (shape, row.sdk, row.texts["weight_dtype"], *sizes)


def _reason(row: PublishedRow, same_graph: Sequence[PublishedRow]) -> str:
    steps_ms = [other.measures["tpot_ms"] for other in same_graph if "tpot_ms" in other.measures]
    rates = [other.measures["output_tok_s"] for other in same_graph if "output_tok_s" in other.measures]
    token_ms = row.measures.get("tpot_ms", 0.0)
    if token_ms and "incl" in row.label("tpot_stat"):
        token_ms -= row.measures.get("ttft_ms", 0.0) / row.counts.get("output_len", 1)
    if token_ms and steps_ms and token_ms < TOLERANCE * min(steps_ms):
        return f"{token_ms:.1f} ms a token where a step of this graph is published with {min(steps_ms):.1f} ms"
    per_engine = row.measures.get("output_tok_s", 0.0) / row.counts.get("dp", 1)
    if rates and per_engine > max(rates):
        return f"{per_engine:.0f} tokens/s where full static batches of this graph are published with {max(rates):.0f}"
    return ""
