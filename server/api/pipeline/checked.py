"""Outputs that are checked against schemas when they have ended, because no grammar could force all of them.

A client that does not stream gets another attempt instead of an output with a fault, as long as its `max_tokens` last.
A stream cannot be taken back. If a fault remains, the last delta of the choice names it (`fault`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

from ...errors import QueueFull, RequestError
from ...text.schema_check import UNCHECKED
from ...types import SamplingParams
from ..wire.usage import DeviceUsage, Usage
from .deltas import Delta, Forward, collect
from .generation import Generation
from .prompts import Prompt
from .stages import PlannedSequence, Sampled

MAX_ATTEMPTS = 8  # for one choice, the first included
RETRY_TEMPERATURE = 0.7  # least of the second attempt: a greedy choice would be the same again
RETRY_HEAT = 0.2  # added to the temperature of each later attempt
SEED_STEP = 1_000_003  # between the attempts' seeds, larger than any number of choices
SEED_MASK = 2**63 - 1


class CheckedGeneration(Generation):
    """A generation whose outputs are checked. In a stream there is one attempt, and its deltas go on as they come."""

    def __init__(self, sampled: Sampled) -> None:
        super().__init__(sampled)
        self._sampled = sampled
        self._constraint = sampled.constraint
        self._others: list[Generation] = []  # further attempts

    def usage(self, has_output: bool = True) -> Usage:
        """Token counts and device time of all attempts; the prompt counts once."""
        usage = super().usage(has_output)
        for other in self._others if has_output else ():
            more = other.usage()
            usage.completion_tokens += more.completion_tokens
            usage.total_tokens += more.completion_tokens
            usage.neuronserve = _sum(usage.neuronserve, more.neuronserve)
        return usage

    def deltas(self, forward: Forward | None = None) -> AsyncGenerator[list[Delta], None]:
        """Batches of output: as it comes, or whole when there may be other attempts."""
        del forward  # an end has to wait for its check
        return self._passed() if self.request.body.stream else self._attempts()

    async def _passed(self) -> AsyncGenerator[list[Delta], None]:
        texts: dict[int, str] = {}
        async with contextlib.aclosing(super().deltas()) as batches:
            async for batch in batches:
                for delta in batch:
                    texts[delta.index] = texts.get(delta.index, "") + delta.text
                    await self._mark(delta, texts[delta.index])
                yield batch

    async def _attempts(self) -> AsyncGenerator[list[Delta], None]:
        """All choices, each the first of its attempts that has no fault, or else its last one."""
        made = {delta.index: delta for delta in await collect(super().deltas())}
        left = {index: self._sampling(index).max_tokens - len(delta.token_ids) for index, delta in made.items()}
        for delta in made.values():
            await self._mark(delta, delta.text)
        for attempt in range(1, MAX_ATTEMPTS):
            failed = [index for index, delta in made.items() if _is_wrong(delta) and left[index] > 0]
            if not failed:
                break
            try:
                retried = [self._retried(index, attempt, left[index]) for index in failed]
                other = Generation(replace(self._sampled, sequences=retried, n=1))
                self._others.append(other)
                found = await collect(other.deltas())
            except RequestError:  # such as a limit of the key: the attempts so far are the answer
                break
            for index, delta in zip(failed, found, strict=True):
                left[index] -= len(delta.token_ids)
                await self._mark(delta, delta.text)
                if delta.fault or delta.finish_reason == "stop":  # an output that was cut is no better than a whole one
                    made[index] = replace(delta, index=index, prompt_logprobs=made[index].prompt_logprobs)
        yield [made[index] for index in sorted(made)]

    async def _mark(self, delta: Delta, text: str) -> None:
        """Look for a fault in an output that has ended by itself."""
        if delta.finish_reason == "stop" and delta.stop_reason is None:
            delta.fault = await self._fault(self.prompts[delta.index], text) or None

    async def _fault(self, prompt: Prompt, text: str) -> str:
        """Return what is wrong with the output that follows a prompt; "" = nothing."""
        checks = self.request.service.model.checks
        for name, schema, part in self._parts(prompt, text):
            try:
                found = await asyncio.wrap_future(checks.submit(schema, part))
            except QueueFull as error:
                found = f"{UNCHECKED}: {error}"
            if found:
                subject = f"The arguments of {name} do" if name else "The output does"
                return f"{subject} not follow the schema: {found}"
        return ""

    def _parts(self, prompt: Prompt, text: str) -> list[tuple[str, str, str]]:
        """Return the texts to check, each with the function called ("" = none) and the schema."""
        parser, answer = self.request.plan.parser(prompt.text or ""), self._constraint.answer
        if parser is None:
            return [("", answer, text)] if answer else []
        first, last = parser.feed(text), parser.finish()
        names: list[str] = []
        arguments: list[str] = []
        for part in first.calls + last.calls:
            if part.name is not None:
                names.append(part.name)
                arguments.append("")
            arguments[-1] += part.arguments
        if not names and answer:
            return [("", answer, first.content + last.content)]
        schemas = self._constraint.calls
        return [(name, schemas[name], text) for name, text in zip(names, arguments, strict=True) if name in schemas]

    def _sampling(self, index: int) -> SamplingParams:
        """Sampling of the first choice of this choice's prompt; they differ in their seeds alone."""
        return self._sampled.sequences[index - index % self._sampled.n].sampling

    def _retried(self, index: int, attempt: int, most: int) -> PlannedSequence:
        params = self._sampling(index)
        return PlannedSequence(
            self.prompts[index],
            replace(
                params,
                seed=(params.seed + index + attempt * SEED_STEP) & SEED_MASK,
                temperature=max(params.temperature, RETRY_TEMPERATURE) + RETRY_HEAT * (attempt - 1),
                max_tokens=most,
                min_tokens=min(params.min_tokens, most),
                prompt_logprobs=None,
            ),
        )


def _is_wrong(delta: Delta) -> bool:
    """Whether another attempt may do better."""
    return delta.fault is not None and UNCHECKED not in delta.fault


def _sum(one: DeviceUsage | None, other: DeviceUsage | None) -> DeviceUsage | None:
    """Add the device time of two attempts."""
    if one is None or other is None:
        return one
    return DeviceUsage(
        device_seconds=one.device_seconds + other.device_seconds,
        prefill_device_seconds=one.prefill_device_seconds + other.prefill_device_seconds,
        decode_device_seconds=one.decode_device_seconds + other.decode_device_seconds,
        cost_usd=None if one.cost_usd is None or other.cost_usd is None else one.cost_usd + other.cost_usd,
        is_extrapolated=one.is_extrapolated or other.is_extrapolated,
        draft_tokens=((one.draft_tokens or 0) + (other.draft_tokens or 0)) or None,
        accepted_draft_tokens=((one.accepted_draft_tokens or 0) + (other.accepted_draft_tokens or 0)) or None,
    )
