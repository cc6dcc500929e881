"""POST /tokenize and /detokenize: text or a conversation to the ids of its prompt, and ids back to text."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from ...errors import InvalidRequest, NotFound
from ...text.tokenizer import read_json
from ..errors import unsupported
from ..http.body import BodyOf
from ..http.openapi import OF_BODIES, documented, errors_of
from ..pipeline.prompts import Prompt, chat_prompt, check_ids, encode, template_source
from ..service import ServedModel, ServiceOf
from ..tools.plan import require_template
from ..wire.chat import MAX_TEMPLATE_CHARS, ChatInput, Message
from ..wire.generation import MAX_IDS, TokenId
from ..wire.model import WireModel
from ..wire.tools import Tools, functions_of
from ..wire.usage import optional

router = APIRouter()


class TokenizeRequest(WireModel):
    """A prompt, messages with the fields of a conversation, or llama.cpp's `content` with its own three fields."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)] | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = Field(None, max_length=MAX_TEMPLATE_CHARS)
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(WireModel):
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_IDS)]


class TokenizeResponse(WireModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenPiece(WireModel):
    id: int
    piece: str | list[int]  # bytes, if they are no text


class ContentTokens(WireModel):
    """Tokens of `content`, in the format of llama.cpp's server."""

    tokens: list[int] | list[TokenPiece]


class DetokenizeResponse(WireModel):
    prompt: str
    content: str | None = optional()  # llama.cpp's name for `prompt`, when the request names no model


@router.post("/tokenize", responses=errors_of(*OF_BODIES), openapi_extra=documented(TokenizeRequest))
async def tokenize(body: BodyOf[TokenizeRequest], service: ServiceOf) -> TokenizeResponse | ContentTokens:
    """Token ids of a text or of a conversation."""
    model = service.model
    service.require_name(body.model)
    if body.content is not None and body.prompt is None and body.messages is None:
        return await _content_tokens(model, body, body.content)
    prompt = await _prompt(model, body)
    pieces = [model.tokenizer.piece(token_id) for token_id in prompt.token_ids] if body.return_token_strs else None
    return TokenizeResponse(
        count=len(prompt.token_ids),
        max_model_len=model.info.max_model_len,
        tokens=list(prompt.token_ids),
        token_strs=pieces,
    )


@router.post("/detokenize", responses=errors_of(*OF_BODIES), openapi_extra=documented(DetokenizeRequest))
async def detokenize(body: BodyOf[DetokenizeRequest], service: ServiceOf) -> DetokenizeResponse:
    """Text of token ids, special tokens included."""
    model = service.model
    service.require_name(body.model)
    check_ids(body.tokens, model.tokenizer.vocab_size, "tokens")
    text = await model.threads.run(lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False))
    return DetokenizeResponse(prompt=text, content=text if body.model is None else None)


@router.get("/tokenizer_info", responses=errors_of(401, 404, 503))
async def tokenizer_info(service: ServiceOf) -> dict[str, Any]:
    """The checkpoint's tokenizer_config.json and the chat template in use; behind a flag, as in vLLM."""
    model = service.model
    if not service.config.enable_tokenizer_info_endpoint:
        raise NotFound("This server shows no tokenizer: start it with --enable-tokenizer-info-endpoint.")
    config = read_json(service.config.tokenizer_path / "tokenizer_config.json", dict[str, Any])
    template = model.template.source if model.template else None
    return {**config, "vocab_size": model.tokenizer.vocab_size, "chat_template": template}


async def _content_tokens(model: ServedModel, body: TokenizeRequest, content: str) -> ContentTokens:
    """Return the tokens of llama.cpp's `content`, which may be empty."""
    if body.parse_special is False:
        raise unsupported("parse_special", ": marks of the vocabulary are always read as such.")
    tokens = list(await encode(model, content, bool(body.add_special), "content")) if content else []
    return ContentTokens(tokens=[_piece(model, i) for i in tokens] if body.with_pieces else tokens)


def _piece(model: ServedModel, token_id: int) -> TokenPiece:
    data = model.tokenizer.token_bytes(token_id)
    try:
        return TokenPiece(id=token_id, piece=data.decode())
    except UnicodeDecodeError:
        return TokenPiece(id=token_id, piece=list(data))


async def _prompt(model: ServedModel, body: TokenizeRequest) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Exactly one of prompt and messages is required.", "prompt")
    if body.prompt is not None:
        ids = await encode(model, body.prompt, body.add_special_tokens is not False, "prompt")
        return Prompt(ids, body.prompt, "prompt")
    chat = ChatInput(
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    tools = functions_of(chat.tools)
    require_template(template_source(model, chat), chat.messages, tools)
    return await chat_prompt(model, chat, tools, bool(body.add_special_tokens))
