"""The harmony form of gpt-oss: messages in channels. `analysis` is reasoning; calls have a recipient.

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

The prompt ends with `<|start|>assistant`. The library `openai-harmony` needs the network to load its vocabulary, so a
server without network could not use it. Here the marks are read in the text, as for any other family.
"""

from __future__ import annotations

from .shapes import Thinking
from .source import Event, Functions, Kind, Reader, Source

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END, CALL, RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
TAGS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
CHANNELS = ("analysis", "commentary", "final")
THINKING = Thinking(
    (f"{CHANNEL}analysis{MESSAGE}",),
    (END,),
    resume=f"{START}assistant",
    answer=f"{CHANNEL}final{MESSAGE}",
    others=(f"{CHANNEL}final", f"{CHANNEL}commentary"),
)
RECIPIENT, NAMESPACE = "to=", "functions."


def read_harmony(source: Source, functions: Functions | None, reasoning: Kind = "reasoning") -> Reader[None]:
    """Read messages to their end. `functions` None: calls are not allowed, and their arguments are content."""
    mark, seen = (yield from source.until((START, CHANNEL), "content")), ""
    while mark:
        header, mark = yield from source.gather((MESSAGE, END, CALL, RETURN, START))
        if mark == MESSAGE:
            channel, name = _address(header)
            kind: Kind = reasoning if channel == "analysis" else "content"
            if name and functions is not None:
                mark = yield from _call(source, name)
            else:
                yield Event(kind, "\n" if kind in seen else "")  # between two messages
                mark = yield from source.until((END, CALL, RETURN, START, CHANNEL), kind)
                seen += kind
        elif not mark:
            yield Event("content", header)
        if mark not in (START, CHANNEL):
            mark = yield from source.until((START, CHANNEL), "content")


def _call(source: Source, name: str) -> Reader[str]:
    """Read a call, whose arguments are the whole message; return the mark that ends it."""
    yield Event("call", name)
    arguments = source.until((END, CALL, RETURN, START, CHANNEL), "arguments")
    is_empty = True
    while True:
        try:
            event = next(arguments)
        except StopIteration as stop:
            if is_empty and stop.value:
                yield Event("arguments", "{}")
            return str(stop.value)
        is_empty = is_empty and event is None
        yield event


def _address(header: str) -> tuple[str, str]:
    """Return the channel of a message and the function that it calls, "" for none."""
    words = header.replace(CHANNEL, " ").replace(CONSTRAIN, " ").split()
    channel = next((word for word in words if word in CHANNELS), "")
    recipients = [word.removeprefix(RECIPIENT) for word in words if word.startswith(RECIPIENT)]
    name = recipients[0] if recipients else ""
    return channel, name.removeprefix(NAMESPACE) if name.startswith(NAMESPACE) else ""
