"""`neuronserve chat`: a conversation in the terminal, or one question from a pipe on stdin and its answer."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.style import Style

from ..errors import SettingsError
from ..monitor.interruption import ends_quietly
from ..monitor.scrape import Unreachable
from .commands import Chat, run_command
from .conversation import ChatSampling, Conversation
from .endpoint import ChatEndpoint, ChatError, Event, Usage

PROMPT = "> "


@ends_quietly()
def run_chat(endpoint: ChatEndpoint, model: str | None, system: str, sampling: ChatSampling) -> None:
    """Run a chat until the user ends it, or answer the question on stdin.

    Raises SettingsError when there is no question, Unreachable or ChatError when the first request fails.
    """
    is_piped = not sys.stdin.isatty()
    question = sys.stdin.read().strip() if is_piped else ""
    if is_piped and not question:
        raise SettingsError("there is no question on stdin")
    conversation = Conversation(model or endpoint.models()[0], sampling, system)
    if is_piped:
        _answer_once(endpoint, conversation, question)
    else:
        _Terminal(Chat(conversation, endpoint)).run()


def _answer_once(endpoint: ChatEndpoint, conversation: Conversation, question: str) -> None:
    """Write only the answer's text, as it arrives."""
    show = printable if sys.stdout.isatty() else str
    last = ""
    for event in endpoint.answer(conversation.ask(question)):
        if text := event.delta.content:
            sys.stdout.write(show(text))
            sys.stdout.flush()
            last = text
    if not last.endswith("\n"):
        sys.stdout.write("\n")


class _Terminal:
    """A chat in a terminal."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._console = Console(highlight=False)

    def run(self) -> None:
        """Read and answer lines until Ctrl-D, /quit, or Ctrl-C at the prompt."""
        with contextlib.suppress(ImportError):  # edits lines and recalls earlier ones
            import readline  # noqa: F401
        self._say(f"{self._chat.conversation.model} at {self._chat.endpoint.url}; /help lists the commands")
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            while self._turn(self._read()):
                pass
        self._console.print()

    def _read(self) -> str:
        """Read a line, and the next one after a backslash at the end. Raises EOFError at the end of input."""
        lines = [input(PROMPT)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input("  "))
        return "\n".join(lines).strip()

    def _turn(self, line: str) -> bool:
        """Run a command or ask a question; return False at the end."""
        if not line.startswith("/"):
            if line:
                self._ask(line)
            return True
        try:
            outcome = run_command(self._chat, line)
        except (Unreachable, ChatError) as error:
            self._complain(error)
            return True
        if outcome.text:
            self._say(outcome.text)
        if outcome.question is not None:
            self._ask(outcome.question)
        return not outcome.is_end

    def _ask(self, question: str) -> None:
        conversation, answer = self._chat.conversation, Answer(self._console)
        body = conversation.ask(question)
        try:
            with contextlib.closing(
                self._chat.endpoint.answer(body)
            ) as events:  # an interruption closes the connection
                answer.show(events)
        except KeyboardInterrupt:
            self._say("\nstopped")
        except (Unreachable, ChatError) as error:
            self._complain(error)
        else:
            self._console.print()
            self._say(answer.summary)
        conversation.take(answer.text)

    def _say(self, text: str) -> None:
        self._console.print(printable(text), style=ASIDE, markup=False)

    def _complain(self, error: Exception) -> None:
        self._console.print(f"\n{printable(str(error))}", style="red", markup=False)


REASONING = Style(dim=True, italic=True)
ASIDE = Style(dim=True)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return `text` without control characters: a model may write escape sequences."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Answer:
    """One answer while it arrives. After an interruption or an error, `text` is the text so far."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.text = ""
        self._usage: Usage | None = None
        self._begin = time.perf_counter()
        self._first_s: float | None = None

    def show(self, events: Iterable[Event]) -> None:
        """Write all events."""
        was_reasoning = False
        for event in events:
            delta, self._usage = event.delta, event.usage or self._usage
            thought = delta.reasoning_content or delta.reasoning
            if (thought or delta.content) and self._first_s is None:
                self._first_s = time.perf_counter() - self._begin
            if thought:
                self._write(thought, REASONING)
                was_reasoning = True
            if delta.content:
                if was_reasoning:
                    self._write("\n\n")
                    was_reasoning = False
                self.text += delta.content
                self._write(delta.content)

    @property
    def summary(self) -> str:
        """Tokens, their rate, time of the first; seconds and dollars on the accelerator, if the server sends them."""
        if self._usage is None or self._first_s is None:
            return ""
        seconds = time.perf_counter() - self._begin
        number = self._usage.completion_tokens
        rate = f", {(number - 1) / (seconds - self._first_s):.1f} a second" if number > 1 else ""
        text = f"{self._usage.prompt_tokens} + {number} tokens{rate}, first after {1e3 * self._first_s:.0f} ms"
        if (modelled := self._usage.neuronserve) is not None:
            price = "" if modelled.cost_usd is None else f", ${modelled.cost_usd:.8f}"
            text += f"; on the accelerator {1e3 * modelled.device_seconds:.1f} ms{price}"
        return text

    def _write(self, text: str, style: Style | None = None) -> None:
        self._console.print(printable(text), end="", style=style, markup=False, highlight=False, soft_wrap=True)
