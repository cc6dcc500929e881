"""/v1/completions on the wire, in OpenAI's shapes."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ..config import MAX_PROMPTS
from .generation import INT32, MAX_IDS, GenerationRequest, TokenId
from .model import WireModel
from .usage import PromptLogprobs, RequestTimes, Usage, optional

TokenIds = Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_IDS)]


def _kind_of_prompt(value: Any) -> str | None:
    """Return the type that a prompt was meant to have, so that validation errors are about that type alone."""
    if isinstance(value, str):
        return "a text"
    if not isinstance(value, list):
        return None
    kinds: dict[type, str] = {str: "list of texts", list: "lists of ids"}
    return kinds.get(type(value[0]), "token ids") if value else "token ids"


BY_KIND = Discriminator(
    _kind_of_prompt,
    custom_error_type="prompt_type",
    custom_error_message="must be a text, a list of texts, a list of token ids or a list of such lists",
)
Prompts = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS), Tag("list of texts")]
    | Annotated[TokenIds, Tag("token ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS), Tag("lists of ids")],
    BY_KIND,
]


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, le=INT32)  # 0 asks only for data about the prompt
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)
    add_special_tokens: bool | None = None
    suffix: str | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_echoed_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None


class CompletionLogprobs(WireModel):
    text_offset: list[int]
    token_logprobs: list[float | None]  # None for the first token of a prompt, which has no prediction
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(WireModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = optional()
    refusal: str | None = optional()  # how the text violates its schema
    token_ids: list[int] | None = optional()
    prompt_token_ids: list[int] | None = optional()
    prompt_logprobs: PromptLogprobs | None = optional()


class WholeCompletionChoice(CompletionChoice):
    """A choice of an answer that is no stream: vLLM's keys are present even when they are null."""

    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(WireModel):
    """A whole answer or one chunk of a stream: both have the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[WholeCompletionChoice] | list[CompletionChoice]
    usage: Usage | None = optional()
    metrics: RequestTimes | None = optional()
