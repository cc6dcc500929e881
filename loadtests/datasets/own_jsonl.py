"""`jsonl`: a user's own requests. A line has `prompt` (a text or token ids) or `messages`, and may have
`output_tokens` (else random_output_len) and `timestamp` (seconds; all lines or none)."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtests.datasets.trace_file import TraceFile
from loadtests.prompts import ChatPrompt, IdPrompt, Prompt, Session, TextPrompt, single
from loadtests.specs import DatasetSpec
from loadtests.vocabulary import Vocabulary


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    output_tokens: int | None = None
    timestamp: float | None = None


def own_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """The first `spec.num_prompts` lines. Raises DatasetError with the line."""
    del vocabulary, seed
    decoder = msgspec.json.Decoder(_Row)
    file = TraceFile(spec.dataset_path, "jsonl")
    sessions: list[Session] = []
    for line in file.lines():
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            file.fail(str(error))
        output_len = spec.random_output_len if row.output_tokens is None else row.output_tokens
        if output_len < 1:
            file.fail(f"output_tokens is {output_len}: it must be at least 1")
        sessions.append(single(_prompt(row, file), output_len, _arrival(row, file, sessions)))
        if len(sessions) == spec.num_prompts:
            break
    file.require_any(len(sessions))
    return sessions


def _prompt(row: _Row, file: TraceFile) -> Prompt:
    if (row.prompt is None) == (row.messages is None):
        file.fail("exactly one of prompt and messages is needed")
    if row.messages is not None:
        return ChatPrompt(tuple(row.messages))
    if isinstance(row.prompt, str):
        return TextPrompt(row.prompt)
    return IdPrompt((tuple(row.prompt or ()),))


def _arrival(row: _Row, file: TraceFile, before: list[Session]) -> float | None:
    if before and (row.timestamp is None) != (before[0].arrival_s is None):
        file.fail("timestamp must be on all lines or on none")
    if row.timestamp is not None:
        file.require_order(row.timestamp)
    return row.timestamp
