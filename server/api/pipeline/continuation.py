"""A request to continue prompts, whichever dialect over text it came in: checked first, then given its prompts."""

from __future__ import annotations

from collections.abc import Sequence

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.pipeline.generation import AnyGeneration
from neuronserve.server.api.pipeline.output_format import Constraint, compile_format, requested_format
from neuronserve.server.api.pipeline.prompts import Prompt
from neuronserve.server.api.pipeline.room import require_room
from neuronserve.server.api.pipeline.sampling import SamplingBuilder, check_logprobs
from neuronserve.server.api.pipeline.start import generation_of
from neuronserve.server.api.pipeline.validate import validate
from neuronserve.server.api.service import Service
from neuronserve.server.api.wire.completions import CompletionRequest


class Continuation:
    """Everything that can be refused before the prompts are encoded has been checked when one is made."""

    def __init__(
        self, service: Service, origin: Origin, body: CompletionRequest, num_prompts: int, clips: bool = False
    ) -> None:
        """`clips`: more tokens than there is room for are never refused. Raises RequestError."""
        self.name = validate(service, body)
        require_room(service, num_prompts * (body.n or 1))
        num_logprobs = check_logprobs(body.logprobs, service.config.max_logprobs, "logprobs")
        self._service, self._origin, self._body = service, origin, body
        self._sampling = SamplingBuilder(service, body, num_logprobs, bool(body.echo), clips)
        self._format = requested_format(service.model, body)

    async def of(self, prompts: Sequence[Prompt], most: int | None) -> AnyGeneration:
        """Return the generation of at most `most` tokens for each prompt, None for all there is room for."""
        required = self._format
        held = Constraint() if required is None else await compile_format(self._service.model, required)
        return generation_of(self._service, self._origin, self._body, self._sampling, (prompts, most, held))
