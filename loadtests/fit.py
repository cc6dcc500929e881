"""Fit of lengths to the server's model: drawn lengths shrink, and long recorded requests are left out. Pure."""

from __future__ import annotations

import msgspec

from ..workload.lengths import LengthRange
from .errors import SpecError
from .specs import DatasetName, DatasetSpec

DRAWN: frozenset[DatasetName] = frozenset({"random", "prefix", "multi-turn"})


def fit_lengths(spec: DatasetSpec, max_model_len: int) -> tuple[DatasetSpec, str | None]:
    """Return the dataset within `max_model_len` tokens a request or conversation, and a note if it was changed.

    Drawn lengths shrink by one factor, so that prompts, answers and prefixes keep their proportions. Recorded requests
    stay unchanged; long ones are left out and counted. Raises SpecError if the model has no room for one token of each.
    """
    if spec.dataset_name not in DRAWN:
        limit = min(spec.max_total_len or max_model_len, max_model_len)
        if limit == spec.max_total_len:
            return spec, None
        note = f"the model takes {max_model_len} tokens: longer requests are left out"
        return msgspec.structs.replace(spec, max_total_len=limit), note
    longest = longest_drawn(spec)
    if longest <= max_model_len:
        return spec, None
    changed = _shrunk(spec, max_model_len)
    return changed, (
        f"the model takes {max_model_len} tokens, and the longest request would have {longest}: "
        f"random_input_len is {changed.random_input_len} instead of {spec.random_input_len}, random_output_len "
        f"{changed.random_output_len} instead of {spec.random_output_len}, prefix_len {changed.prefix_len} instead of "
        f"{spec.prefix_len}"
    )


def longest_drawn(spec: DatasetSpec) -> int:
    """Return the tokens of the longest possible request, with its answer and the turns before it."""
    turns = spec.num_turns if spec.dataset_name == "multi-turn" else 1
    lengths = (spec.random_input_len, spec.random_output_len)
    return spec.prefix_len + turns * sum(LengthRange.around(n, spec.random_range_ratio).high for n in lengths)


def _shrunk(spec: DatasetSpec, max_model_len: int) -> DatasetSpec:
    factor = max_model_len / longest_drawn(spec)
    changed = msgspec.structs.replace(
        spec,
        random_input_len=max(1, int(spec.random_input_len * factor)),
        random_output_len=max(1, int(spec.random_output_len * factor)),
        prefix_len=int(spec.prefix_len * factor),
    )
    if longest_drawn(changed) > max_model_len:
        raise SpecError(f"max_model_len is {max_model_len}: {spec.num_turns} turns have no room in it")
    return changed
