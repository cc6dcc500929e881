"""Chat templates: messages to prompt text, in Jinja's immutable sandbox.

The sandbox keeps a hostile template from reaching the host, but not from looping. So `template_process.py` runs this
file in a process with limits of time and memory, and only that process imports Jinja.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ..errors import CheckpointError, SettingsError
from ..host.regular_file import read_regular, why_unreadable
from .tokenizer import MAX_CONFIG_BYTES, read_json

# Names that a request's chat_template_kwargs may not replace.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize"})


class TemplateInput(msgspec.Struct, frozen=True):
    """Input of a template, all of it plain JSON values."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # leave the last message open, so that the model continues it
    extra: dict[str, Any] = {}
    tools: list[dict[str, Any]] | None = None  # in OpenAI's form
    documents: list[dict[str, Any]] | None = None  # to answer from


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TemplateConfig(msgspec.Struct):
    """Chat templates in tokenizer_config.json."""

    chat_template: str | list[_NamedTemplate] | None = None


class ChatTemplateError(Exception):
    """The template refuses these messages, or is broken; `str()` is fit to be shown to a user."""


class ChatTemplate:
    """A compiled template. `special` are the special tokens by name, such as `bos_token`."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special = special
        self._source = source
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, MemoryError, SyntaxError) as error:
            raise ChatTemplateError(f"the chat template cannot be compiled: {_reason(error)}") from error

    def render(self, given: TemplateInput) -> str:
        """Render the prompt text. Raises ChatTemplateError for any error in the template."""
        values = {
            **self._special,
            **given.extra,
            "messages": [self._message(message) for message in given.messages],
            "tools": given.tools,
            "documents": given.documents,
            "add_generation_prompt": given.add_generation_prompt,
        }
        try:
            text = self._template.render(values)
        except Exception as error:  # a template can raise anything, by mistake or by intent
            raise ChatTemplateError(f"the chat template refused the messages: {_reason(error)}") from error
        return _open_end(text, given.messages[-1]) if given.continue_final_message else text

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message, with role `system` for OpenAI's newer `developer` unless the template knows that."""
        if message.get("role") == "developer" and "developer" not in self._source:
            return {**message, "role": "system"}
        return message


def load_chat_template(directory: Path, override: str | None = None) -> str | None:
    """Return the template's source: `override` (a file, or the template itself), else the checkpoint's, else None.

    The checkpoint has it in chat_template.jinja, or in tokenizer_config.json as text or as named templates. Of these,
    `tool_use` is for requests with tools and `default` for others.
    """
    if override is not None:
        return _read_override(override)
    path = directory / "chat_template.jinja"
    if os.path.lexists(path):
        try:
            return _read_template(path)
        except OSError as error:
            raise CheckpointError(path.name, why_unreadable(error)) from None
    template = read_json(directory / "tokenizer_config.json", _TemplateConfig).chat_template
    if isinstance(template, list):
        named = {each.name: each.template for each in template}
        return _with_tools(named.get("default"), named.get("tool_use"))
    return template


def _with_tools(default: str | None, tool_use: str | None) -> str | None:
    """Return one template that chooses between two, with the white space that each would produce alone."""
    if default is None or tool_use is None:
        return default
    first, second = tool_use.removesuffix("\n"), default.removesuffix("\n")
    return f"{{% if tools %}}\n{first}{{{{ '' }}}}{{% else %}}\n{second}{{{{ '' }}}}{{% endif %}}"


def _read_override(override: str) -> str:
    if "{" in override:
        return override
    try:
        return _read_template(Path(override))
    except OSError as error:
        raise SettingsError(f"--chat-template: cannot read {override!r}: {error.strerror}") from error


def _read_template(path: Path) -> str:
    text = read_regular(path, MAX_CONFIG_BYTES)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(path.name, f"is not UTF-8: {error.reason} at byte {error.start}") from error


def _open_end(text: str, last: dict[str, Any]) -> str:
    """Return `text` up to the end of the last message's content."""
    content = str(last.get("content") or "").strip()
    at = text.rfind(content)
    if at < 0:
        raise ChatTemplateError("continue_final_message: the chat template changes the text of the last message")
    return text[: at + len(content)]


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return JSON as transformers' filter writes it: without HTML escapes, characters kept as they are."""
    known = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _reason(error: BaseException) -> str:
    """Return the error's first line, at most 300 characters."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text[:300]
