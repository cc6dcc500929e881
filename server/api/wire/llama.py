"""The endpoints of llama.cpp's server on the wire: bodies with their ranges, and answers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, RootModel

from ..config import MAX_LOGIT_BIAS
from .chat import ChatInput
from .generation import INT32, INT64, GenerationRequest
from .model import BodyModel, WireModel
from .pooling import EncodingFormat, TextsOrIds
from .usage import optional

MAX_EXTRA = 256  # files in one /infill
MAX_FIELDS = 64

Bias = Annotated[float, Field(ge=-100, le=100)] | Literal[False]  # false: the token is never generated
BiasPair = Annotated[list[int | str | Bias], Field(min_length=2, max_length=2)]


Biases = dict[str, Bias] | Annotated[list[BiasPair], Field(fail_fast=True, max_length=MAX_LOGIT_BIAS)]


class LlamaRequest(GenerationRequest):
    """Fields of /completion and /infill that OpenAI's completions lack, or name differently."""

    n_predict: int | None = Field(None, ge=-1, le=INT32)
    max_tokens: int | None = Field(None, ge=-1, le=INT32)
    n_cmpl: int | None = Field(None, ge=1, le=128)
    n_probs: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-1, le=INT64)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: Biases | None = None  # type: ignore[assignment]
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    response_fields: Annotated[list[str], Field(fail_fast=True, max_length=MAX_FIELDS)] | None = None


class LlamaCompletionRequest(LlamaRequest):
    """Body whose `prompt` is a text, `{"prompt_string": text}`, tokens mixed with texts, or a list of such prompts."""

    prompt: Any


class ExtraFile(WireModel):
    model_config = ConfigDict(strict=True)

    filename: str = ""
    text: str


class InfillRequest(LlamaRequest):
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(fail_fast=True, max_length=MAX_EXTRA)] | None = None
    prompt: str | None = None


class LlamaEmbeddingRequest(BodyModel):
    """Body with texts or tokens in `content` or in `input`."""

    model: str | None = None
    content: TextsOrIds | None = None
    input: TextsOrIds | None = None
    encoding_format: EncodingFormat | None = None


class ApplyTemplateRequest(BodyModel, ChatInput):
    TEMPLATE_FIELDS: ClassVar[tuple[str, ...]] = ("reasoning_effort",)

    model: str | None = None
    reasoning_effort: str | None = Field(None, max_length=32)


class AppliedTemplate(WireModel):
    prompt: str


class Timings(WireModel):
    """Tokens and times of a completion; times of the output begin after its first token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class TokenProbability(WireModel):
    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list["TokenProbability"] | None = optional()


class LlamaChunk(WireModel):
    """A part of a stream; `LlamaCompletion` follows the last."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = -1  # sequences have no slots
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenProbability] | None = optional()
    timings: Timings | None = optional()


class LlamaCompletion(WireModel):
    """A whole answer, or the end of a stream, with empty `content` and `tokens`."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings | None = optional()  # only with one output
    completion_probabilities: list[TokenProbability] | None = optional()


class LlamaAnswer(RootModel[Any]):
    """A `LlamaCompletion` or the fields that a request names; a list of them for several outputs."""


class LlamaEmbedding(WireModel):
    index: int
    embedding: list[list[float]]


class Props(WireModel):
    """Properties of the server and its model."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: Literal[False] = False


class Slot(WireModel):
    """A slot of the batch. It does not say which sequence it holds."""

    id: int
    n_ctx: int
    speculative: Literal[False] = False
    is_processing: bool
