"""The generation of a request that has been checked: sampled, the best of several, or by beam search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.api.pipeline.beam_generation import BeamGeneration
from neuronserve.server.api.pipeline.best_of import BestOf
from neuronserve.server.api.pipeline.checked import Checked, OutputCheck, ParserOf, no_parser
from neuronserve.server.api.pipeline.generation import AnyGeneration, Generation
from neuronserve.server.api.pipeline.output_format import Constraint
from neuronserve.server.api.pipeline.prompts import Prompt
from neuronserve.server.api.pipeline.sampling import SamplingBuilder
from neuronserve.server.api.service import Service
from neuronserve.server.api.wire.generation import GenerationRequest
from neuronserve.server.errors import InvalidRequest


def num_choices(body: GenerationRequest) -> int:
    """Choices that are generated of each prompt. Raises InvalidRequest where fewer are generated than given."""
    n, best_of = body.n or 1, body.best_of or 0
    if 0 < best_of < n:
        raise InvalidRequest(f"best_of is {best_of}; it must be at least n, which is {n}.", "best_of")
    if best_of > n and body.stream:
        raise InvalidRequest("best_of cannot be streamed: which is the best is known at the end.", "best_of")
    return max(n, best_of)


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
    generation = _unchecked(service, origin, body, sampling, (prompts, most, held.grammar))
    if not held.is_checked:
        return generation
    single = body.model_copy(update={"n": 1})
    is_final = bool(body.stream) or not isinstance(generation, Generation)
    again = None if is_final else partial(Generation, service, origin, single)
    return Checked(generation, OutputCheck(service.model.checks, held, parser_of), again)


def _unchecked(
    service: Service,
    origin: Origin,
    body: GenerationRequest,
    sampling: SamplingBuilder,
    planned: tuple[Sequence[Prompt], int | None, str],
) -> AnyGeneration:
    """The generation under a grammar, without any check."""
    count = num_choices(body)
    if body.use_beam_search:
        return BeamGeneration(service, origin, body, sampling.sequences(*planned, num_choices=1))
    _require_beams(body)
    wide = body if count == (body.n or 1) else body.model_copy(update={"n": count})
    generation = Generation(service, origin, wide, sampling.sequences(*planned, num_choices=count))
    return generation if wide is body else BestOf(generation, body.n or 1, count)


def _require_beams(body: GenerationRequest) -> None:
    """Raise InvalidRequest for parameters that only beams have."""
    if body.length_penalty not in (None, 1.0):
        raise InvalidRequest("length_penalty needs use_beam_search.", "length_penalty")
    if body.early_stopping:
        raise InvalidRequest("early_stopping needs use_beam_search.", "early_stopping")
