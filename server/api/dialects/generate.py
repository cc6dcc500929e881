"""POST /generate of LMDeploy: a text or token ids in, a text with its tokens out."""

from collections.abc import Iterable

from fastapi import APIRouter, Request, Response

from ...errors import InvalidRequest
from ..errors import as_body, refuse_given
from ..http.body import BodyOf
from ..http.openapi import OF_BODIES, STREAM, documented, errors_of
from ..http.origin import origin_of
from ..pipeline.deltas import Delta
from ..pipeline.generation import Generation
from ..pipeline.logprobs import LEAST
from ..pipeline.prompts import completion_prompts
from ..pipeline.respond import json_frame, respond
from ..pipeline.start import start
from ..pipeline.validate import validated
from ..service import ServiceOf
from ..wire.completions import CompletionRequest
from ..wire.generate import GenerateAnswer, GenerateMeta, GenerateRequest

router = APIRouter()
DEFAULT_MAX_TOKENS = 128
OWN = {"prompt", "input_ids", "return_logprob"}  # fields that are converted here
# Fields that would change the answer: they must be empty.
REFUSED = ("image_data", "return_routed_experts", "repetition_ngram_size", "repetition_ngram_threshold")


@router.post(
    "/generate",
    responses=STREAM | errors_of(401, 408, 429, *OF_BODIES),
    openapi_extra=documented(GenerateRequest, GenerateAnswer),
)
async def generate(request: Request, body: BodyOf[GenerateRequest], service: ServiceOf) -> Response:
    """Continue a text or tokens, whole or as a stream."""
    continued, has_logprobs = _completion_request(body), bool(body.return_logprob)
    checked = validated(origin_of(request), continued, service)
    given = [("input_ids" if body.prompt is None else "prompt", body.prompt or body.input_ids or [])]
    prompts = await completion_prompts(service.model, given, True, checked.max_prompt_tokens)
    generation = await start(checked, prompts, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens)
    return await respond(request.receive, GenerateWriter(generation, has_logprobs), bool(body.stream))


def _completion_request(body: GenerateRequest) -> CompletionRequest:
    if (body.prompt is None) == (body.input_ids is None):
        raise InvalidRequest("Exactly one of prompt and input_ids is required.", "prompt")
    refuse_given(body.model_extra, *REFUSED)
    fields = body.model_dump(exclude_unset=True, by_alias=True, exclude=OWN)
    own = {"prompt": body.prompt or body.input_ids, "logprobs": 0 if body.return_logprob else None}
    return as_body(CompletionRequest, fields | own)


class GenerateWriter:
    """Puts deltas into LMDeploy's shape, which its stream has too."""

    def __init__(self, generation: Generation, has_logprobs: bool) -> None:
        self.generation = generation
        self._has_logprobs = has_logprobs

    def whole(self, deltas: list[Delta]) -> GenerateAnswer:
        return self._answer(deltas[0])

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        for delta in deltas:
            yield json_frame(self._answer(delta))

    def last_frames(self) -> Iterable[bytes]:
        return ()

    def _answer(self, delta: Delta) -> GenerateAnswer:
        usage = self.generation.usage()
        pairs = [(max(LEAST, entry.sampled), i) for i, entry in zip(delta.token_ids, delta.logprobs, strict=False)]
        return GenerateAnswer(
            text=delta.text,
            output_ids=delta.token_ids,
            meta_info=GenerateMeta(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                finish_reason=None if delta.finish_reason is None else {"type": delta.finish_reason},
                output_token_logprobs=pairs if self._has_logprobs else None,
            ),
        )
