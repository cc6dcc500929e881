"""`jsonl`: a user's own requests.

A line has `prompt` (a text or token ids) or `messages`, and may have `output_tokens` (default: random_output_len) and
`timestamp` (seconds; on all lines or none).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...server.clock import NS
from ...workload.trace_file import TraceFile
from ...workload.traces import seconds_ns
from ..prompts import ChatPrompt, IdPrompt, Prompt, Session, TextPrompt, single
from ..specs import DatasetSpec


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    output_tokens: int | None = None
    timestamp: float | None = None


def own_sessions(spec: DatasetSpec, path: Path) -> list[Session]:
    """Return the first `spec.num_prompts` lines as sessions. Raises SettingsError with the line."""
    decoder = msgspec.json.Decoder(_Row)
    file = TraceFile(path)
    sessions: list[Session] = []
    for number, line in enumerate(file.lines(), 1):
        if not line.strip():
            continue
        with file.refusing(number):  # msgspec's errors are ValueErrors
            row = decoder.decode(line)
            time_ns = None if row.timestamp is None else seconds_ns(row.timestamp)
            session = _session(row, time_ns, spec.random_output_len)
            if sessions and (time_ns is None) != (sessions[0].arrival_s is None):
                raise ValueError("timestamp must be on all lines or on none")
        if time_ns is not None:
            file.require_order(number, time_ns)
        sessions.append(session)
        if len(sessions) == spec.num_prompts:
            break
    file.require_any(len(sessions))
    return sessions


def _session(row: _Row, time_ns: int | None, output_len: int) -> Session:
    """Return the session of a row. Raises ValueError."""
    length = output_len if row.output_tokens is None else row.output_tokens
    if length < 1:
        raise ValueError(f"output_tokens is {length}: it must be at least 1")
    return single(_prompt(row), length, None if time_ns is None else time_ns / NS)


def _prompt(row: _Row) -> Prompt:
    if (row.prompt is None) == (row.messages is None):
        raise ValueError("exactly one of prompt and messages is needed")
    if row.messages is not None:
        return ChatPrompt(tuple(row.messages))
    if isinstance(row.prompt, str):
        return TextPrompt(row.prompt)
    return IdPrompt((tuple(row.prompt or ()),))
