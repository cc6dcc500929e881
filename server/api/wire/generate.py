"""/generate of LMDeploy on the wire."""

from typing import Annotated, Any

from pydantic import Field

from .completions import TokenIds
from .generation import INT32, GenerationRequest
from .model import WireModel


class GenerateRequest(GenerationRequest):
    """Body with either `prompt` or `input_ids`, for one output."""

    prompt: Annotated[str, Field(min_length=1)] | None = None
    input_ids: TokenIds | None = None
    return_logprob: bool | None = None
    n: int | None = Field(None, ge=1, le=1)
    max_tokens: int | None = Field(None, ge=1, le=INT32)


class GenerateMeta(WireModel):
    prompt_tokens: int
    completion_tokens: int
    finish_reason: dict[str, Any] | None
    output_token_logprobs: list[tuple[float, int]] | None = None


class GenerateAnswer(WireModel):
    """A whole answer, or one chunk of a stream with the text and the tokens since the chunk before."""

    text: str
    output_ids: list[int]
    meta_info: GenerateMeta
