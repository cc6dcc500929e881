"""`azure-trace`: arrivals and lengths of the Azure LLM inference traces (CSV); the tokens are random.

Format: https://github.com/Azure/AzurePublicDataset, columns TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import numpy as np

from loadtests.datasets.lengths import scaled
from loadtests.datasets.trace_file import TraceFile
from loadtests.prompts import IdPrompt, Session, single
from loadtests.specs import DatasetSpec
from loadtests.vocabulary import Vocabulary

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Row(NamedTuple):
    arrival_s: float  # from the first row on
    input_len: int
    output_len: int


def azure_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """The first `spec.num_prompts` rows. Raises DatasetError with the line."""
    generator = np.random.default_rng(seed)
    file = TraceFile(spec.dataset_path, "azure-trace")
    sessions = []
    for row in _rows(file):
        prompt = IdPrompt((vocabulary.draw(generator, scaled(row.input_len, spec.length_scale)),))
        sessions.append(single(prompt, scaled(row.output_len, spec.length_scale), row.arrival_s))
        if len(sessions) == spec.num_prompts:
            break
    file.require_any(len(sessions))
    return sessions


def _rows(file: TraceFile) -> Iterator[_Row]:
    rows = csv.DictReader(file.lines())
    origin: datetime | None = None
    for row in rows:
        if missing := [name for name in COLUMNS if row.get(name) is None]:
            file.fail(f"column {missing[0]} is missing; the columns must be {', '.join(COLUMNS)}")
        try:
            time = datetime.fromisoformat(row["TIMESTAMP"].strip())
            input_len, output_len = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except ValueError as error:
            file.fail(str(error))
        if input_len < 1 or output_len < 0:
            file.fail(f"{input_len} context and {output_len} generated tokens cannot be")
        origin = origin or time
        arrival_s = (time - origin).total_seconds()
        file.require_order(arrival_s)
        yield _Row(arrival_s, input_len, output_len)
