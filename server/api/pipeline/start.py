"""Start the generation of a request that has been checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.pipeline.checked import Checked, OutputCheck, ParserOf, no_parser
from neuronserve.server.api.pipeline.generation import AnyGeneration, Generation
from neuronserve.server.api.pipeline.output_format import Constraint
from neuronserve.server.api.pipeline.prompts import Prompt
from neuronserve.server.api.pipeline.sampling import SamplingBuilder
from neuronserve.server.api.service import Service
from neuronserve.server.api.wire.generation import GenerationRequest


def generation_of(
    service: Service,
    origin: Origin,
    body: GenerationRequest,
    sampling: SamplingBuilder,
    planned: tuple[Sequence[Prompt], int | None, Constraint],
    parser_of: ParserOf = no_parser,
) -> AnyGeneration:
    """`planned` are the prompts, the most tokens for each, and what holds them. Raises InvalidRequest."""
    prompts, most, held = planned
    sequences = sampling.sequences(prompts, most, held.grammar, num_choices=body.n or 1)
    generation = Generation(service, origin, body, sequences)
    if not held.is_checked:
        return generation
    single = body.model_copy(update={"n": 1})
    again = None if body.stream else partial(Generation, service, origin, single)
    return Checked(generation, OutputCheck(service.model.checks, held, parser_of), again)
