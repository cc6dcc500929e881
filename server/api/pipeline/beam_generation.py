"""A generation by beam search: every step of a beam is a request for one token, whose prompt the prefix cache knows.

The scores are those of the raw logits, so nothing that changes or restricts them may be asked for beside.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.pipeline.beams import Beam, BeamParams, BeamSearch, EndedBeam
from neuronserve.server.api.pipeline.deltas import Delta, Forward
from neuronserve.server.api.pipeline.generation import PlannedSequence, device_usage, failure_of
from neuronserve.server.api.pipeline.prompts import Prompt
from neuronserve.server.api.pipeline.room import require_room
from neuronserve.server.api.pipeline.timing import Deadline
from neuronserve.server.api.service import Service
from neuronserve.server.api.wire.generation import GenerationRequest
from neuronserve.server.api.wire.usage import PromptTokensDetails, Usage
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.text.detokenizer import TextStream
from neuronserve.server.types import Charge, Request, SamplingParams, TokenEvent

# Each changes which tokens come, ends a text elsewhere, or is about tokens as they are drawn: beams have none of it.
EXCLUDED = (
    "stream",
    "best_of",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "logprobs",
    "prompt_logprobs",
)


class BeamGeneration:
    """`n` beams of each prompt, which come whole when all have ended. To metrics each step is requests of its own."""

    def __init__(
        self, service: Service, origin: Origin, body: GenerationRequest, sequences: Sequence[PlannedSequence]
    ) -> None:
        """`sequences` has each prompt once. Raises InvalidRequest where beams cannot do what is asked for."""
        _require_plain(body, sequences[0].sampling)
        self._width = body.n or 1
        require_room(service, self._width * len(sequences))
        service.engine.check_rank(origin.data_parallel_rank)
        self._service, self._origin, self._body = service, origin, body
        self._adapter = service.adapters.get(body.model)
        self._planned = sequences
        self._prompts = [sequence.prompt for sequence in sequences]
        self._num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self._prompts)
        self._sampling = sequences[0].sampling
        self._searches = [BeamSearch(_params(self._width, body, each.sampling)) for each in sequences]
        self._arrival_time = service.clock.now()
        self._deadline = Deadline.of(origin, body.timeout)
        self._num_cached = [0] * len(sequences)
        self._num_generated = 0
        self._charge, self._prefill_ns = Charge(), 0

    @property
    def prompts(self) -> list[Prompt]:
        """One prompt for each choice index."""
        return [prompt for prompt in self._prompts for _ in range(self._width)]

    @property
    def planned(self) -> Sequence[PlannedSequence]:
        """Each prompt once, with the sampling that beams are made of."""
        return self._planned

    async def require_welcome(self) -> None:
        """Raise RateLimited when the key's limits say so: beams are let in however many wait."""
        await self._origin.caller.use.require(self._num_prompt_tokens)

    async def deltas(self, forward: Forward | None = None) -> AsyncGenerator[list[Delta], None]:
        """One batch with all choices. Raises GenerationFailed, Unavailable, or RequestTimeout after the time limit."""
        del forward
        generating = self._origin.caller.use.generating(self._num_prompt_tokens)
        async with generating as use:
            with self._service.adapters.using(self._adapter):
                while any(not search.is_done for search in self._searches):
                    await self._step()
            ended = [(i, beam) for i, search in enumerate(self._searches) for beam in search.ended]
            self._num_generated = sum(len(beam.token_ids) for _, beam in ended)
            use.generated(self._num_generated)
            use.found_cached(sum(self._num_cached))
        yield [self._delta(index, *each) for index, each in enumerate(ended)]

    def usage(self, has_output: bool = True) -> Usage:
        """Token counts of the prompts and of the beams that were kept, and the device time of all."""
        num_prompt = self._num_prompt_tokens
        num_generated = self._num_generated if has_output else 0
        shows_device = self._origin.has_device_usage
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_generated,
            total_tokens=num_prompt + num_generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached)),
            neuronserve=device_usage(self._service, self._charge, self._prefill_ns) if shows_device else None,
        )

    def times(self, is_asked: bool = False) -> None:
        """Steps of beams are several sequences, which have none."""

    async def _step(self) -> None:
        """One more token for each beam that runs."""
        is_first = not any(search.running[0].token_ids for search in self._searches if search.running)
        open_searches = [(i, search) for i, search in enumerate(self._searches) if not search.is_done]
        requests = [self._request(i, beam) for i, search in open_searches for beam in search.running]
        found = await self._run(requests)
        self._count([charge for _, charge in found], is_first)
        if is_first:
            self._num_cached = [event.num_cached_tokens for event, _ in found]
        logprobs = iter([event.logprobs for event, _ in found if event.logprobs is not None])
        for _, search in open_searches:
            search.advance(list(itertools.islice(logprobs, len(search.running))))

    async def _run(self, requests: Sequence[Request]) -> list[tuple[TokenEvent, Charge]]:
        """The one event of each request."""
        service, found = self._service, dict[str, tuple[TokenEvent, Charge]]()
        watch = service.served.requests.watch(self._origin, 1, requests)
        with service.engine.submit(requests, self._origin.data_parallel_rank) as stream, watch:
            watch.placed(stream.engines)
            while stream.is_open:
                for event, charge in await self._deadline.limit(stream.next(), service.clock):
                    if (error := failure_of(event)) is not None:
                        raise error
                    watch.take(event)
                    watch.end(event.request_id, "length")
                    found[event.request_id] = event, charge
        return [found[request.request_id] for request in requests]

    def _count(self, charges: Sequence[Charge], is_first: bool) -> None:
        device_ns = sum(charge.device_ns for charge in charges)
        is_extrapolated = self._charge.is_extrapolated or any(charge.is_extrapolated for charge in charges)
        self._charge = Charge(self._charge.device_ns + device_ns, is_extrapolated)
        self._prefill_ns += device_ns if is_first else 0

    def _request(self, i: int, beam: Beam) -> Request:
        body = self._body
        sampling = SamplingParams(1, temperature=0.0, ignore_eos=True, logprobs=self._searches[i].params.num_candidates)
        return Request(
            request_id=f"{self._origin.request_id}-{uuid.uuid4().hex[:12]}",
            prompt_token_ids=(*self._prompts[i].token_ids, *beam.token_ids),
            sampling=sampling,
            arrival_time=self._arrival_time,  # a beam keeps its place in the queue from step to step
            priority=self._origin.caller.priority(body.priority),
            cache_salt=body.cache_salt or "",
            received_time=self._origin.arrival_time,
            lora=self._adapter.digest if self._adapter is not None else "",
            tenant=self._origin.caller.tenant,
        )

    def _delta(self, index: int, i: int, beam: EndedBeam) -> Delta:
        *before, last = beam.token_ids
        is_stopped = last in self._searches[i].params.end_ids
        keeps_end = not is_stopped or bool(self._body.include_stop_str_in_output)
        text = TextStream(
            self._service.served.tokenizer, self._prompts[i].token_ids, self._body.skip_special_tokens is not False
        )
        shown = _text(text, beam.token_ids if keeps_end else before)
        return Delta(index, shown, list(beam.token_ids), finish_reason="stop" if is_stopped else "length")


def _text(stream: TextStream, token_ids: Iterable[int]) -> str:
    return "".join([stream.feed(token_id) for token_id in token_ids]) + stream.finish()


def _params(width: int, body: GenerationRequest, sampling: SamplingParams) -> BeamParams:
    return BeamParams(
        width,
        sampling.max_tokens,
        frozenset() if sampling.ignore_eos else frozenset(sampling.eos_token_ids),
        1.0 if body.length_penalty is None else body.length_penalty,
        body.early_stopping or False,
    )


def _require_plain(body: GenerationRequest, sampling: SamplingParams) -> None:
    for name in EXCLUDED:
        if getattr(body, name, None):
            raise InvalidRequest(f"{name} and use_beam_search exclude each other.", name)
    if sampling.grammar:
        raise InvalidRequest("use_beam_search and a required format exclude each other.", "use_beam_search")
    if body.max_tokens == 0:
        raise InvalidRequest("use_beam_search needs max_tokens of at least 1.", "max_tokens")
