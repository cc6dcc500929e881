"""Fields of every generation request on the wire, with their ranges: OpenAI's, and vLLM's extras.

Unknown fields are kept: some of them change the meaning of a request and must be refused (`pipeline/validate.py`).
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from ..config import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_ID_CHARS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_N,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from .model import BodyModel

INT32 = 2**31 - 1
INT64 = 2**63 - 1
MAX_CHOICES = 1024
MAX_IDS = 2**18  # in one prompt; a body has no room for more (MAX_VALUES)
BY_TOKEN_ID: JsonDict = {"propertyNames": {"pattern": "^[0-9]{1,10}$"}, "maxProperties": MAX_LOGIT_BIAS}

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Choices = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)]

AllowedTokenIds = Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)]

LogprobTokenIds = Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]

JsonSchema = dict[str, Any] | str | bool  # a text is parsed as JSON


def listed(*values: str) -> WithJsonSchema:
    """Return the schema of a text with these values. The code that reads the text refuses other values."""
    return WithJsonSchema({"type": "string", "enum": [*values]})


def needing(*names: str) -> Callable[[JsonDict], None]:
    """Make /openapi.json require these fields. Unsupported types may lack them, and are refused later."""

    def require(schema: JsonDict) -> None:
        fields = cast(dict[str, dict[str, Any]], schema["properties"])
        for name in names:
            field = {key: value for key, value in fields[name].items() if key != "default"}
            kinds = [kind for kind in field.pop("anyOf", ()) if kind != {"type": "null"}]
            fields[name] = field | ({"anyOf": kinds} if len(kinds) > 1 else dict(*kinds))
        schema["required"] = [*names]

    return require


class StreamOptions(BodyModel):
    """OpenAI's `stream_options`: which chunks of a stream carry usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(BodyModel):
    name: str | None = None
    schema_: JsonSchema = Field(alias="schema")
    strict: bool | None = None


class TextResponse(BodyModel):
    type: Literal["text"]
    json_schema: None = None
    schema_: None = Field(None, alias="schema")


class JsonObjectResponse(BodyModel):
    type: Literal["json_object"]
    json_schema: None = None
    schema_: JsonSchema | None = Field(None, alias="schema")  # a field of other servers


class JsonSchemaResponse(BodyModel):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat
    schema_: None = Field(None, alias="schema")


ResponseFormat = TextResponse | JsonObjectResponse | JsonSchemaResponse


class StructuredOutputs(BodyModel):
    """vLLM's `structured_outputs`: exactly one of these fields is given."""

    json_: JsonSchema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationRequest(BodyModel):
    """Body of a generation request. A null field counts as absent: the model's default applies, else OpenAI's."""

    model_config = ConfigDict(allow_inf_nan=False)
    LOGPROBS_FIELD: ClassVar[str] = "logprobs"  # the field of `num_logprobs`

    model: str | None = Field(None, max_length=4096)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=INT32)
    min_tokens: int | None = Field(None, ge=0, le=INT32)
    n: int | None = Field(None, ge=1, le=MAX_N)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-INT64 - 1, le=INT64)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(None, json_schema_extra=BY_TOKEN_ID)
    stop: StopString | Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = Field(None, ge=-INT32 - 1, le=INT32)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_ID_CHARS)
    timeout: float | None = Field(None, gt=0, le=86400)  # seconds
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=INT32)
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_BAD_WORDS)] | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0)
    logprob_token_ids: LogprobTokenIds | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    json_schema: JsonSchema | None = None
    grammar: str | None = None
    user: Any = None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to each token of the output; None without log-probabilities."""
        return None

    @property
    def num_echoed_logprobs(self) -> int | None:
        """Alternatives to each token of a prompt that is part of the output; None without log-probabilities."""
        return None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the tokens of the output, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(dict.fromkeys(self.stop))
