"""`neuronserve chat`: a conversation in the terminal; with a pipe for stdin, one question and its answer alone."""

from __future__ import annotations

import contextlib
import sys

from rich.console import Console

from neuronserve.server.chat.commands import Chat, run_command
from neuronserve.server.chat.conversation import ChatSampling, Conversation
from neuronserve.server.chat.endpoint import ChatEndpoint, ChatError
from neuronserve.server.chat.screen import ASIDE, Answer, printable
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
