"""Requests that are longer than a context: cut, left out, or kept for the server to refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from neuronserve.server.errors import SettingsError
from neuronserve.server.workload.workload import BoolArray, Workload

TooLong = Literal["cut", "drop", "refuse"]
TOO_LONG: tuple[TooLong, ...] = get_args(TooLong)


def fit_context(workload: Workload, max_model_len: int, too_long: TooLong) -> Workload:
    """The requests with at most `max_model_len` tokens, prompt and answer together, and how many that changed.

    "cut" takes the ends off prompts, so that they share with others what they shared before, and answers are cut only
    where they alone are too long; "drop" leaves such requests out; "refuse" changes nothing.
    Raises SettingsError for a context that holds no request, and when none is left.
    """
    if too_long not in TOO_LONG:
        raise SettingsError(f"too_long is {too_long!r}: one of {', '.join(TOO_LONG)}")
    if max_model_len < 2:
        raise SettingsError(f"max_model_len is {max_model_len}: it must be at least 2")
    is_long: BoolArray = workload.input_len + workload.output_len > max_model_len
    count = int(is_long.sum())
    if too_long == "refuse" or not count:
        return workload
    if too_long == "cut":
        return replace(_cut(workload, max_model_len), num_cut=count)
    if count == len(workload):
        raise SettingsError(f"{workload.name}: each request is longer than max_model_len {max_model_len}")
    return replace(workload.only(~is_long), num_dropped=count)


def _cut(workload: Workload, most: int) -> Workload:
    outputs = np.minimum(workload.output_len, most - 1)
    inputs = np.minimum(workload.input_len, most - outputs)
    prefixes = workload.prefixes
    if prefixes is not None:
        num_blocks = (-(-inputs // workload.prefix_block)).tolist()
        prefixes = tuple(names[:count] for names, count in zip(prefixes, num_blocks, strict=True))
    return replace(workload, input_len=inputs, output_len=outputs, prefixes=prefixes)
