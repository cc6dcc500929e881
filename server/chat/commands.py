"""The commands of a chat, which are lines that begin with a slash: one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .conversation import Conversation
from .endpoint import ChatEndpoint


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a command: text to show, a question to ask, or the end of the chat."""

    text: str = ""
    question: str | None = None
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and the endpoint that answers."""

    conversation: Conversation
    endpoint: ChatEndpoint


def run_command(chat: Chat, line: str) -> Outcome:
    """Carry out `line`, such as "/system Be brief.". Raises Unreachable or ChatError."""
    name, _, argument = line.removeprefix("/").partition(" ")
    if name not in COMMANDS:
        return Outcome(f"there is no /{name}; /help lists the commands")
    return COMMANDS[name][0](chat, argument.strip())


def _help(chat: Chat, argument: str) -> Outcome:
    del chat, argument
    lines = [f"/{name:<8} {effect}" for name, (_, effect) in COMMANDS.items()]
    return Outcome("\n".join([*lines, "A line that ends in \\ continues in the next line; Ctrl-C stops an answer."]))


def _system(chat: Chat, argument: str) -> Outcome:
    chat.conversation.system = argument
    return Outcome("the system prompt is set" if argument else "the system prompt is removed")


def _reset(chat: Chat, argument: str) -> Outcome:
    del argument
    chat.conversation.turns.clear()
    return Outcome("the conversation starts again")


def _retry(chat: Chat, argument: str) -> Outcome:
    del argument
    question = chat.conversation.take_back()
    return Outcome("there is no question yet") if question is None else Outcome(question=question)


def _model(chat: Chat, argument: str) -> Outcome:
    names = chat.endpoint.models()
    if not argument:
        return Outcome("\n".join(f"{name}{' (in use)' * (name == chat.conversation.model)}" for name in names))
    if argument not in names:
        return Outcome(f"there is no model {argument}; there is {', '.join(names)}")
    chat.conversation.model = argument
    return Outcome(f"{argument} answers from now on")


def _save(chat: Chat, argument: str) -> Outcome:
    """Write the conversation as the body of a request, which any client can send."""
    if not argument:
        return Outcome("/save FILE: the name is missing")
    body = {"model": chat.conversation.model, "messages": chat.conversation.messages}
    try:
        with Path(argument).expanduser().open("x", encoding="utf-8") as file:
            file.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
    except FileExistsError:
        return Outcome(f"{argument} exists already and is not changed")
    except OSError as error:
        return Outcome(f"cannot write {argument}: {error.strerror}")
    return Outcome(f"saved to {argument}")


def _quit(chat: Chat, argument: str) -> Outcome:
    del chat, argument
    return Outcome(is_end=True)


COMMANDS: dict[str, tuple[Callable[[Chat, str], Outcome], str]] = {
    "help": (_help, "this list"),
    "system": (_system, "TEXT is the system prompt; without TEXT there is none"),
    "reset": (_reset, "forget the conversation, not the system prompt"),
    "retry": (_retry, "ask the last question again"),
    "model": (_model, "NAME answers from now on; without NAME lists the models"),
    "save": (_save, "write the conversation to FILE, as the body of a request"),
    "quit": (_quit, "end, as Ctrl-D does"),
}
