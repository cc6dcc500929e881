"""Stage 4: the sequences of one HTTP request from submission to text, as merged deltas of n choices for each prompt.

When the iteration ends, for any reason, sequences that still run are aborted in the engine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from ...clock import NS
from ...errors import InvalidRequest, RequestError, RequestTimeout
from ...link.stream import Taker, TokenStream
from ...types import Charge, Request, TokenEvent
from ..service import Service
from ..wire.usage import DeviceUsage, PromptTokensDetails, RequestTimes, Usage
from .choice import Choice, choice_of
from .deltas import Delta, Forward
from .journal import AnswerJournal, Merged, number_of
from .prompts import Prompt, check_ids
from .room import counted_refusals, require_room
from .scheduling import scheduling_fields
from .sources import first_tokens, media_of
from .stages import PlannedSequence, Sampled


def device_usage(service: Service, charge: Charge, prefill_ns: int) -> DeviceUsage:
    """Return a charge for the wire; `prefill_ns` of it came before the first token of each choice."""
    return DeviceUsage(
        device_seconds=charge.device_ns / NS,
        prefill_device_seconds=prefill_ns / NS,
        decode_device_seconds=(charge.device_ns - prefill_ns) / NS,
        cost_usd=service.served.rate.usd(charge.device_ns),
        is_extrapolated=charge.is_extrapolated,
    )


class Generation:
    """The sequences of one request, checked and ready to run; `deltas` runs them once."""

    def __init__(self, sampled: Sampled) -> None:
        self.request = request = sampled.request
        service, origin, body, sequences = request.service, request.origin, request.body, sampled.sequences
        require_room(service, len(sequences))  # again: other requests may have come while this one was rendered
        service.engine.check_rank(origin.data_parallel_rank)
        self._service = service
        self._rank = origin.data_parallel_rank
        self._use = origin.caller.use
        self._adapter = service.adapters.get(body.model)
        self._sequences = sequences
        self._n = sampled.n
        self._interval = service.config.stream_interval if body.stream else 1
        self._num_prompt_tokens = sum(len(each.prompt.token_ids) for each in self.planned)
        self._has_device_usage = origin.has_device_usage
        tokenizer = service.served.tokenizer
        # A client may send one X-Request-Id twice at a time; the engine's ids must not repeat.
        prefix = f"{origin.request_id}-{uuid.uuid4().hex[:12]}"
        self._choices = {f"{prefix}-{i}": choice_of(tokenizer, i, body, seq) for i, seq in enumerate(sequences)}
        fingerprint = service.fingerprint_of(request.model_name) + (f"-{self._interval}" if self._interval > 1 else "")
        self.journal = AnswerJournal(origin.resumed, fingerprint, bool(body.stream))
        self._given: dict[str, list[int]] = {}  # tokens of the journal, by sequence
        self._replayed = [self._replay(merged) for merged in self.journal.earlier]
        now = service.clock.now()
        requests = [
            Request(
                request_id=engine_id,
                prompt_token_ids=first_tokens(service.model, seq.prompt),
                sampling=seq.sampling,
                arrival_time=now,
                priority=origin.caller.priority(body.priority),
                cache_salt=body.cache_salt or "",
                received_time=origin.arrival_time,
                lora=self._adapter.digest if self._adapter is not None else "",
                due_time=now + service.config.patience_s,
                **scheduling_fields(service.config, origin.caller, origin.objectives, now),
                media=media_of(service.model, seq.prompt),
            )
            for engine_id, seq in zip(self._choices, sequences, strict=True)
        ]
        self._requests = [self._continued(each) for each in requests if not self._choices[each.request_id].has_ended]
        self._watch = service.served.requests.watch(origin, self._n, self._requests or requests)

    @property
    def prompts(self) -> list[Prompt]:
        """One prompt for each choice index."""
        return [sequence.prompt for sequence in self._sequences]

    async def deltas(self, forward: Forward | None = None) -> AsyncGenerator[list[Delta], None]:
        """Run the sequences; yield batches of output as it comes, with at most one delta for each choice.

        `forward` receives the deltas that come while it is open and the caller waits.
        """
        gate, adapters = self._service.served.gate, self._service.adapters
        entry = self._requests, self._rank, self._use, self._num_prompt_tokens
        timeout_s = self.request.body.timeout
        for deltas in self._replayed:
            yield deltas
        if not self._requests:
            return
        with (
            counted_refusals(self._service),
            adapters.using(self._adapter),
            gate.entered(*entry) as stream,
            self._watch as watch,
        ):
            watch.placed(stream.engines)
            stream.taker = None if forward is None else self._taker(stream, forward)
            while stream.is_open:
                try:
                    events = await (stream.next() if timeout_s is None else self._next(stream, timeout_s))
                except RequestTimeout:
                    if not any(choice.num_tokens for choice in self._choices.values()):
                        raise
                    yield [choice.time_out() for choice in self._choices.values() if not choice.has_ended]
                    return
                except RequestError:
                    if held := [choice.held for choice in self._choices.values() if choice.held is not None]:
                        yield held
                    raise
                if events:
                    yield self._merge(stream, events)

    def usage(self, has_output: bool = True) -> Usage:
        """Return token counts and device time so far; without output, those before the first token."""
        choices = list(self._choices.values())
        firsts = range(0, len(choices), self._n)
        num_generated = sum(choice.num_tokens for choice in choices) if has_output else 0
        num_picture_tokens = sum(item.num_tokens for each in self.planned for item in each.prompt.media)
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=num_generated,
            total_tokens=self._num_prompt_tokens + num_generated,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(choices[i].num_cached_tokens for i in firsts),
                image_tokens=num_picture_tokens or None,
            ),
            neuronserve=self._device_usage() if self._has_device_usage else None,
        )

    def times(self, is_asked: bool = False) -> RequestTimes | None:
        """Return the times of a request with one sequence, if the settings or the caller want them."""
        is_shown = (is_asked or self._service.config.enable_per_request_metrics) and len(self._choices) == 1
        return self._watch.times if is_shown else None

    @property
    def planned(self) -> Sequence[PlannedSequence]:
        """Each prompt once, with the sampling of its first choice."""
        return self._sequences[:: self._n]

    def require_welcome(self) -> None:
        """Raise what `deltas` would raise at once: Overloaded, or RateLimited."""
        gate = self._service.served.gate
        with counted_refusals(self._service):
            gate.check(self._requests, self._rank, self._use, self._num_prompt_tokens)

    def _device_usage(self) -> DeviceUsage:
        choices = self._choices.values()
        device_ns = sum(choice.charge.device_ns for choice in choices)
        charge = Charge(device_ns, any(choice.charge.is_extrapolated for choice in choices))
        usage = device_usage(self._service, charge, sum(choice.prefill_ns for choice in choices))
        verified, accepted = (sum(choice.drafts[i] for choice in choices) for i in range(2))
        return usage.model_copy(
            update={"draft_tokens": verified, "accepted_draft_tokens": accepted} if verified else {}
        )

    async def _next(self, stream: TokenStream, timeout_s: float) -> list[tuple[TokenEvent, Charge]]:
        """Wait for events until the request's own timeout. Raises RequestTimeout."""
        try:
            async with asyncio.timeout(self.request.origin.arrival_time + timeout_s - self._service.clock.now()):
                return await stream.next()
        except TimeoutError as error:
            raise RequestTimeout(f"The request's timeout of {timeout_s:g} s has passed.", "timeout") from error

    def _taker(self, stream: TokenStream, forward: Forward) -> Taker:
        def take(event: TokenEvent, charge: Charge) -> bool:
            is_open = forward.is_open
            if is_open:
                forward.give(self._merge(stream, [(event, charge)]))
            return is_open

        return take

    def _merge(self, stream: TokenStream | None, events: Merged) -> list[Delta]:
        """Return the deltas of events that come now, or of those of an earlier replica, which have no `stream`."""
        deltas: dict[Choice, Delta] = {}
        num_tokens = 0
        for event, charge in events:
            request_id = event.request_id
            choice = self._choices[request_id]
            if choice.has_ended:
                continue  # a stop string came first
            delta = deltas.get(choice)
            if delta is None:
                delta = deltas[choice] = choice.held or Delta(choice.index)
            num_tokens -= choice.num_tokens
            if stream is not None:
                self._watch.take(event, charge)
            choice.take(event, charge, delta)
            num_tokens += choice.num_tokens
            if event.index == 0 and choice.index % self._n == 0:
                self._use.found_cached(event.num_cached_tokens)
            if delta.finish_reason is not None:
                choice.has_ended = True
                if stream is not None:
                    self._watch.end(request_id, delta.finish_reason)
                    stream.abort(request_id)
        if stream is not None and self.journal.is_wanted:
            self.journal.note([(self._choices[event.request_id].index, event, charge) for event, charge in events])
        self._use.generated(num_tokens)
        interval = self._interval
        return [delta for choice, delta in deltas.items() if interval == 1 or choice.is_due(delta, interval)]

    def _replay(self, entry: Merged) -> list[Delta]:
        """Return the deltas that another replica made of an entry of its journal. Raises InvalidRequest."""
        names, events = list(self._choices), []
        for event, charge in entry:
            name = names[number_of(event.request_id, len(names))]
            events.append((event._replace(request_id=name), charge))
            if event.token_id is not None:
                self._given.setdefault(name, []).append(event.token_id)
        check_ids([each for given in self._given.values() for each in given], self._service.model.vocab_size, "journal")
        return self._merge(None, events)

    def _continued(self, request: Request) -> Request:
        """Return the request of a choice with what the journal has of it. Raises InvalidRequest."""
        choice = self._choices[request.request_id]
        given = tuple(self._given.get(request.request_id, ()))
        if given and len(given) >= request.sampling.max_tokens:
            raise InvalidRequest(f"The journal has {len(given)} tokens of a choice that may have no more.")
        cached = choice.num_cached_tokens
        return replace(request, generated_token_ids=given, num_cached_tokens=cached, charged=choice.charge)
