"""`neuronserve run-batch`: answer a batch from one file into another, by a service without an HTTP port.

Answers are written as they come to OUTPUT.part, which becomes OUTPUT at the end. A run that finds such a file continues
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ...errors import EngineLost, SettingsError
from ...link.groups import EngineGroups
from ...link.handle import EngineHandle
from ..config import ApiConfig
from ..event_loop import run
from ..service import Service
from ..store.batches import Tally
from .answer import ENDPOINTS, Worker
from .lines import BatchLine, LineRules, check_file, read_requests
from .slots import Slots

log = logging.getLogger("neuronserve.batch")
STOP_TIMEOUT_S = 5.0
MILLION = 1e6


class _Done(msgspec.Struct):
    custom_id: str


def check_input(source: Path, config: ApiConfig) -> int:
    """Return the number of lines. Raises SettingsError with the first line that is no request."""
    try:
        checked = check_file(source, _rules(config))
    except OSError as error:
        raise SettingsError(f"--input-file: cannot read {source}: {error.strerror}") from error
    if checked.errors:
        first = checked.errors[0]
        where = "" if first.line is None else f" line {first.line}:"
        more = f" ({len(checked.errors)} lines are wrong)" if len(checked.errors) > 1 else ""
        raise SettingsError(f"--input-file: {source}:{where} {first.message}{more}")
    return checked.total


def run_batch(config: ApiConfig, engines: Sequence[EngineHandle], source: Path, target: Path, total: int) -> int:
    """Answer every line, and print a summary. Returns 1 when a line was refused or failed, else 0.

    Raises StartError when the model cannot be loaded, the output cannot be written, or no engine is left.
    """
    begin = time.monotonic()
    try:
        tally = run(_run(config, engines, source, target, total))
    except OSError as error:
        raise SettingsError(f"--output-file: cannot write {target}: {error.strerror}") from error
    Console().print(_summary(tally, time.monotonic() - begin))
    return 1 if tally.failed else 0


async def _run(config: ApiConfig, engines: Sequence[EngineHandle], source: Path, target: Path, total: int) -> Tally:
    service = Service(config, EngineGroups(engines, config.healing))
    part = target.with_name(target.name + ".part")
    try:
        with part.open("ab+") as output:
            done = _written(output)
            if done:
                log.info("%s has %d answers; the remaining lines follow", part, len(done))
            await service.load(lambda line: log.info("%s", line))
            with _progress() as progress:
                run = _Run(service, output, progress, total - len(done))
                lines = read_requests(source, _rules(config))
                await run.answer_all(line for line in lines if line.custom_id not in done)
        part.replace(target)
        return run.tally
    finally:
        await service.close(STOP_TIMEOUT_S)


class _Run:
    """The lines of one run, and the tally of their results."""

    def __init__(self, service: Service, output: BinaryIO, progress: Progress, total: int) -> None:
        self.tally = Tally()
        self._slots = Slots(service, share=1.0)
        self._worker = Worker(service, "", service.keys.anyone)
        self._output = output
        self._progress = progress
        self._task = progress.add_task("lines", total=total, tokens=0, cost="")

    async def answer_all(self, lines: Iterable[BatchLine]) -> None:
        """Answer the lines. Raises EngineLost, or OSError when an answer cannot be written."""
        try:
            async with asyncio.TaskGroup() as group:
                for line in lines:
                    await self._slots.wait()
                    group.create_task(self._answer(line))
                    await asyncio.sleep(0)  # so that it takes its slot
        except* (EngineLost, OSError) as failed:
            raise failed.exceptions[0] from None

    async def _answer(self, line: BatchLine) -> None:
        with self._slots.taken():
            result = await self._worker.answer(line)
        self._output.write(result.data)
        self._output.flush()
        self.tally = self.tally.plus(result)
        cost = self.tally.cost_usd
        cost_text = "" if cost is None else f"${cost:.6f}"
        self._progress.update(self._task, advance=1, tokens=self.tally.output_tokens, cost=cost_text)


def _written(output: BinaryIO) -> set[str]:
    """Return the ids of the lines that have answers; a line that a killed run left unfinished is cut off."""
    output.seek(0)
    done, end = set(), 0
    for data in output:
        with contextlib.suppress(msgspec.MsgspecError):
            if data.endswith(b"\n"):
                done.add(msgspec.json.decode(data, type=_Done).custom_id)
                end += len(data)
                continue
        break
    output.truncate(end)
    return done


def _rules(config: ApiConfig) -> LineRules:
    return LineRules(ENDPOINTS.keys(), config.max_body_bytes)


def _progress() -> Progress:
    tokens = TextColumn("{task.fields[tokens]} tokens {task.fields[cost]}")
    parts = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), tokens
    return Progress(*parts, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))


def _summary(tally: Tally, seconds: float) -> Table:
    """Return the table of this run's results; device time and price are those of the modelled accelerator."""
    table = Table(title="run-batch", show_header=False)
    rows = [
        ("answered", f"{tally.completed}"),
        ("refused or failed", f"{tally.failed}"),
        ("tokens in", f"{tally.input_tokens}, of which {tally.cached_tokens} cached"),
        ("tokens out", f"{tally.output_tokens}"),
        ("time here", f"{seconds:.1f} s"),
        ("modelled device time", f"{tally.device_seconds:.3f} s"),
    ]
    if tally.cost_usd is not None:
        rows.append(("modelled price", f"${tally.cost_usd:.6f}"))
        if tally.output_tokens:
            rows.append(("a million tokens out", f"${tally.cost_usd / tally.output_tokens * MILLION:.4f}"))
    for row in rows:
        table.add_row(*row)
    return table
