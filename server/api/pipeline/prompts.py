"""Prompts as token ids, rendered from text, from ids, or from a conversation by the chat template."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json

from ...errors import InvalidRequest
from ...text.chat_template import RESERVED, TemplateInput
from ...types import MediaItem, TranscriptRules
from ..errors import refuse_given, required, unsupported
from ..http.json_meter import require_small
from ..service import ServedModel
from ..wire.chat import IMAGE, ROLES, TEXT, ChatInput, ContentPart, Message
from ..wire.completions import Prompts
from ..wire.tools import INPUT, CustomToolCall, Tool, ToolCall
from .pictures import has_pictures, picture_urls, placed, with_pictures

# No token of a sensible vocabulary is longer than this many characters (some are runs of spaces), so a longer text than
# the context has room for is refused without being encoded.
MAX_CHARS_PER_TOKEN = 256
SHORT_CHARS = 2000  # a text up to this length is encoded faster than a thread starts
_DOCUMENTS = re.compile(r"\bdocuments\b")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `param` is the request's field it came from."""

    token_ids: tuple[int, ...]
    text: str | None  # None when the client sent ids
    param: str
    media: tuple[MediaItem, ...] = ()  # pictures in it
    transcript: TranscriptRules | None = None  # of what follows it, where sound is transcribed


def split_prompts(given: Prompts) -> list[tuple[str, str | list[int]]]:
    """Return each prompt of a completions request with the name of its field."""
    if isinstance(given, str):
        return [("prompt", given)]
    items = cast(Sequence[Any], given)
    if isinstance(items[0], int):
        return [("prompt", list(items))]
    return [(f"prompt[{i}]", item) for i, item in enumerate(items)]


async def completion_prompts(
    model: ServedModel, given: Sequence[tuple[str, str | list[int]]], add_special_tokens: bool, most: int | None = None
) -> list[Prompt]:
    """Encode or check each of the `given` prompts. A text that must exceed `most` tokens is refused unencoded."""
    _require_text(model)
    prompts = []
    for param, item in given:
        if isinstance(item, str):
            prompts.append(Prompt(await encode(model, item, add_special_tokens, param, most), item, param))
        else:
            prompts.append(Prompt(check_ids(item, model.vocab_size, param), None, param))
    return prompts


async def chat_prompt(
    model: ServedModel,
    chat: ChatInput,
    tools: Sequence[Tool],
    add_special: bool = False,
    most: int | None = None,
) -> Prompt:
    """Render the prompt of a conversation with `tools`; the template writes the special tokens.

    Raises InvalidRequest. A prompt that must have more than `most` tokens is refused unencoded.
    """
    _require_text(model)
    if model.info.max_source_len:
        raise InvalidRequest(
            f"{model.info.facts.architecture} turns one text into another and holds no conversation: "
            "use /v1/completions.",
            "messages",
            "unsupported_endpoint",
        )
    if chat.documents and not _DOCUMENTS.search(template_source(model, chat) or ""):
        raise unsupported("documents", " is not supported: the chat template of this model knows none.")
    urls = picture_urls(model, chat.messages)
    text = await chat_text(model, chat, tools)
    text, pictures = await with_pictures(model, text, urls)
    ids = await encode(model, text, add_special, "messages", most)
    return Prompt(ids, text, "messages", placed(model, ids, pictures))


async def chat_text(model: ServedModel, chat: ChatInput, tools: Sequence[Tool]) -> str:
    """Return what the chat template writes of a conversation; pictures are marks. Raises InvalidRequest."""
    render = _renderer(model, chat)
    is_divided = model.pictures is not None and "is string" not in (template_source(model, chat) or "")
    return await model.threads.run(lambda: render(_conversation(chat, tools, is_divided)))


def _require_text(model: ServedModel) -> None:
    """Raise InvalidRequest if the model writes only what it hears."""
    if model.speech is not None:
        raise InvalidRequest(
            f"{model.info.facts.architecture} transcribes sound: ask /v1/audio/transcriptions.",
            "model",
            "unsupported_endpoint",
        )


def template_source(model: ServedModel, chat: ChatInput) -> str | None:
    """Return the template that renders the conversation: the request's own, else the model's, if it has one."""
    return chat.chat_template or (model.template.source if model.template else None)


def _renderer(model: ServedModel, chat: ChatInput) -> Callable[[TemplateInput], str]:
    if chat.chat_template:
        if model.templates is None:
            raise unsupported(
                "chat_template", " is refused: this server was started without --trust-request-chat-template."
            )
        return functools.partial(model.templates.render, chat.chat_template)
    if model.template is None:
        raise InvalidRequest(
            "This model has no chat template; start the server with --chat-template, or use /v1/completions.",
            "messages",
        )
    return model.template.render


async def encode(
    model: ServedModel, text: str, add_special_tokens: bool, param: str, most: int | None = None
) -> tuple[int, ...]:
    """Return the token ids of a prompt, at least one. A long text is encoded in a thread, so that other tasks run.

    Raises InvalidRequest. A text that must have more than `most` tokens is refused unencoded.
    """
    if len(text) > model.info.max_prompt_len * MAX_CHARS_PER_TOKEN:
        raise _too_long(model, text, param)

    def ids_of() -> list[int]:
        if most is not None and len(text) > most and model.tokenizer.fewest_tokens(text) > most:
            raise _too_long(model, text, param)
        return model.tokenizer.encode(text, add_special_tokens)

    is_short = len(text) <= SHORT_CHARS and not model.tokenizer.has_failed
    ids = ids_of() if is_short else await model.threads.run(ids_of)
    if not ids:
        raise InvalidRequest("The prompt is empty.", param)
    return check_ids(ids, model.info.vocab_size, param)


def _too_long(model: ServedModel, text: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"This model's maximum context length is {model.info.max_prompt_len} tokens, which a prompt of {len(text)} "
        "characters cannot fit.",
        param,
        "context_length_exceeded",
    )


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> tuple[int, ...]:
    """Return `ids` as a tuple. Raises InvalidRequest when one is not below `vocab_size`, or below 0."""
    largest, least = max(ids, default=0), min(ids, default=0)
    if largest >= vocab_size or least < 0:
        wrong = least if least < 0 else largest
        raise InvalidRequest(f"{param}: token id {wrong} is out of vocabulary: it is not below {vocab_size}.", param)
    return tuple(ids)


def _conversation(chat: ChatInput, tools: Sequence[Tool], is_divided: bool = False) -> TemplateInput:
    """Return the input of the template. `is_divided`: the template expects each content as a list of parts."""
    kwargs = {**chat.template_fields, **(chat.chat_template_kwargs or {})}
    for name in RESERVED & set(kwargs):
        raise InvalidRequest(f"chat_template_kwargs may not set {name!r}.", "chat_template_kwargs")
    messages = [_message(message, f"messages[{i}]", is_divided) for i, message in enumerate(chat.messages)]
    continues = bool(chat.continue_final_message)
    generates = (not continues) if chat.add_generation_prompt is None else chat.add_generation_prompt
    if continues and generates:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other.", "continue_final_message"
        )
    described = [tool.model_dump(exclude_unset=True) for tool in tools]
    return TemplateInput(messages, generates, continues, kwargs, described or None, chat.documents or None)


def _message(message: Message, param: str, is_divided: bool) -> dict[str, Any]:
    """Return the message as chat templates expect it: content as text, or parts; unknown fields kept."""
    if message.role not in ROLES:
        known = ", ".join(ROLES)
        raise InvalidRequest(f"{param}.role is {message.role[:40]!r}; supported are {known}.", f"{param}.role")
    extra = message.model_extra or {}
    refuse_given(extra, "function_call", "audio", before=f"{param}.")
    has_parts = is_divided or has_pictures(message)
    content = content_parts(message, param) if has_parts else content_text(message, param)
    rendered = {**extra, "role": message.role, "content": content}
    if extra.get("reasoning"):  # vLLM's present name; templates know the other
        rendered.setdefault("reasoning_content", extra["reasoning"])
    if message.tool_calls:
        rendered["tool_calls"] = [
            _tool_call(call, f"{param}.tool_calls[{i}].function.arguments") for i, call in enumerate(message.tool_calls)
        ]
    return rendered


def _tool_call(call: ToolCall | CustomToolCall, param: str) -> dict[str, Any]:
    """Return the call as chat templates expect it: arguments as an object, or as text if they are not a JSON object."""
    if isinstance(call, CustomToolCall):
        known = {} if call.id is None else {"id": call.id}
        return {
            **known,
            "type": "function",
            "function": {"name": call.custom.name, "arguments": {INPUT: call.custom.input}},
        }
    rendered = call.model_dump(exclude_none=True)
    require_small(call.function.arguments, param)
    try:
        arguments = from_json(call.function.arguments, allow_inf_nan=False)
    except ValueError:
        return rendered
    if isinstance(arguments, dict):
        rendered["function"]["arguments"] = arguments
    return rendered


def content_parts(message: Message, param: str) -> list[dict[str, str]]:
    """Return the parts of the message at `param` as chat templates of models that read pictures expect them."""
    if message.content is None or isinstance(message.content, str):
        return [{"type": TEXT, "text": content_text(message, param)}]
    parts = []
    for index, part in enumerate(message.content):
        if part.type == IMAGE:
            parts.append({"type": "image"})
        else:
            parts.append({"type": TEXT, "text": _part_text(part, f"{param}.content[{index}]")})
    return parts


def content_text(message: Message, param: str) -> str:
    """Return the text of the message at `param` in the request. Raises InvalidRequest for parts of other types."""
    field = f"{param}.content"
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise InvalidRequest(f"{field} is required for the role {message.role!r}.", field)
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_part_text(part, f"{field}[{index}]") for index, part in enumerate(message.content))


def _part_text(part: ContentPart, param: str) -> str:
    if part.type != TEXT:
        raise unsupported(f"{param}.type", f" is {part.type[:40]!r}; this server takes only text parts here.")
    return required(part.text, f"{param}.text")
