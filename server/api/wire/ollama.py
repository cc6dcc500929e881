"""Ollama's API on the wire: bodies with their ranges, and answers. Durations are in nanoseconds."""

from typing import Annotated, Any, Literal

from pydantic import Field

from .chat import ROLES
from .generation import INT32, INT64, JsonSchema, listed
from .model import BodyModel, WireModel
from .pooling import FilledText, FilledTexts
from .tools import Tools
from .usage import optional

Think = bool | Literal["low", "medium", "high", "max"]
Pictures = Annotated[list[str], Field(fail_fast=True)]  # each in base64


class Options(BodyModel):
    """How tokens are chosen. Those of Ollama that tune its host, as `num_gpu`, are kept and change nothing."""

    num_predict: int | None = Field(None, ge=-2, le=INT32)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = Field(None, ge=-INT64 - 1, le=INT64)
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    typical_p: float | None = None


class OllamaBody(BodyModel):
    """Fields of every request about a model. `keep_alive` changes nothing: the model stays."""

    model: str = Field(min_length=1, max_length=4096)
    options: Options | None = None
    keep_alive: Any = None


class OllamaRequest(OllamaBody):
    """Fields of both kinds of generation."""

    stream: bool | None = None
    format: Literal["", "json"] | JsonSchema | None = None
    think: Think | None = None


class CalledFunction(BodyModel):
    name: str
    arguments: dict[str, Any] | None = None


class Call(BodyModel):
    id: str | None = None
    function: CalledFunction


class OllamaMessage(BodyModel):
    role: Annotated[str, listed(*ROLES)]
    content: str | None = None
    thinking: str | None = None
    images: Pictures | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(OllamaRequest):
    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] | None = None
    tools: Tools | None = None


class OllamaGenerateRequest(OllamaRequest):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    images: Pictures | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbedRequest(OllamaBody):
    input: FilledText | FilledTexts
    truncate: bool | None = None
    dimensions: int | None = Field(None, ge=1, le=INT32)


class OllamaEmbeddingRequest(OllamaBody):
    """Body of the older /api/embeddings."""

    prompt: FilledText


class OllamaShowRequest(BodyModel):
    model: str | None = None
    name: str | None = None  # the earlier name of `model`


class AnsweredFunction(WireModel):
    index: int
    name: str
    arguments: dict[str, Any]


class AnsweredCall(WireModel):
    id: str
    function: AnsweredFunction


class AnsweredMessage(WireModel):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | None = optional()
    tool_calls: list[AnsweredCall] | None = optional()


class OllamaAnswer(WireModel):
    """A whole answer, or a line of a stream; the last line has why the output ended, counts and durations."""

    model: str
    created_at: str  # RFC 3339
    message: AnsweredMessage | None = optional()  # of a chat
    response: str | None = optional()  # of /api/generate
    thinking: str | None = optional()
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = optional()
    total_duration: int | None = optional()
    load_duration: int | None = optional()
    prompt_eval_count: int | None = optional()
    prompt_eval_duration: int | None = optional()
    eval_count: int | None = optional()
    eval_duration: int | None = optional()


class OllamaEmbeddings(WireModel):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbedding(WireModel):
    embedding: list[float]


class Details(WireModel):
    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(WireModel):
    """A model as /api/tags lists it, and /api/ps with what it holds."""

    name: str
    model: str
    modified_at: str
    size: int  # bytes of its weights on the accelerator
    digest: str
    details: Details
    expires_at: str | None = optional()
    size_vram: int | None = optional()
    context_length: int | None = optional()


class OllamaModels(WireModel):
    models: list[OllamaModel]


class OllamaShown(WireModel):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(WireModel):
    version: str
