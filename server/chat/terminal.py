"""`neuronserve chat`: a conversation in the terminal; with a pipe for stdin, one question and its answer alone."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.style import Style

from neuronserve.server.chat.commands import Chat, run_command
from neuronserve.server.chat.conversation import ChatSampling, Conversation
from neuronserve.server.chat.endpoint import ChatEndpoint, ChatError, Event, Usage
from neuronserve.server.errors import SettingsError
from neuronserve.server.monitor.interruption import ends_quietly
from neuronserve.server.monitor.scrape import Unreachable

PROMPT = "> "


@ends_quietly()
def run_chat(endpoint: ChatEndpoint, model: str | None, system: str, sampling: ChatSampling) -> None:
    """Talk until the person ends it, or answer the question on stdin.

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
    """The answer's text and nothing else, as it comes."""
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
    """A person who types, and a model that answers."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._console = Console(highlight=False)

    def run(self) -> None:
        """Until Ctrl-D, /quit, or Ctrl-C at the prompt."""
        with contextlib.suppress(ImportError):  # edits lines and recalls earlier ones
            import readline  # noqa: F401
        self._say(f"{self._chat.conversation.model} at {self._chat.endpoint.url}; /help lists the commands")
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            while self._turn(self._read()):
                pass
        self._console.print()

    def _read(self) -> str:
        """A line, with those that follow a backslash. Raises EOFError at the end."""
        lines = [input(PROMPT)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input("  "))
        return "\n".join(lines).strip()

    def _turn(self, line: str) -> bool:
        """Do what was typed; False at the end."""
        if not line.startswith("/"):
            if line:
                self._ask(line)
            return True
        try:
            outcome = run_command(self._chat, line)
        except (Unreachable, ChatError) as error:
            self._complain(error)
            return True
        if outcome.words:
            self._say(outcome.words)
        if outcome.question is not None:
            self._ask(outcome.question)
        return not outcome.is_end

    def _ask(self, question: str) -> None:
        conversation, answer = self._chat.conversation, Answer(self._console)
        body = conversation.ask(question)
        try:
            with contextlib.closing(self._chat.endpoint.answer(body)) as events:  # interrupted, the server hears of it
                answer.show(events)
        except KeyboardInterrupt:
            self._say("\nstopped")
        except (Unreachable, ChatError) as error:
            self._complain(error)
        else:
            self._console.print()
            self._say(answer.summary)
        conversation.take(answer.text)

    def _say(self, words: str) -> None:
        self._console.print(printable(words), style=ASIDE, markup=False)

    def _complain(self, error: Exception) -> None:
        self._console.print(f"\n{printable(str(error))}", style="red", markup=False)


REASONING = Style(dim=True, italic=True)
ASIDE = Style(dim=True)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without what a terminal would obey: a model may write escape sequences."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Answer:
    """One answer while it comes. After an interruption or an error, `text` is what came until then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.text = ""
        self._usage: Usage | None = None
        self._begin = time.perf_counter()
        self._first_s: float | None = None

    def show(self, events: Iterable[Event]) -> None:
        """Write all of it."""
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
        """Tokens, their pace, the time of the first; seconds and dollars of the modelled part, if the server says."""
        if self._usage is None or self._first_s is None:
            return ""
        seconds = time.perf_counter() - self._begin
        number = self._usage.completion_tokens
        rate = f", {(number - 1) / (seconds - self._first_s):.1f} a second" if number > 1 else ""
        words = f"{self._usage.prompt_tokens} + {number} tokens{rate}, first after {1e3 * self._first_s:.0f} ms"
        if (modelled := self._usage.neuronserve) is not None:
            price = "" if modelled.cost_usd is None else f", ${modelled.cost_usd:.8f}"
            words += f"; on the part {1e3 * modelled.device_seconds:.1f} ms{price}"
        return words

    def _write(self, text: str, style: Style | None = None) -> None:
        self._console.print(printable(text), end="", style=style, markup=False, highlight=False, soft_wrap=True)
