"""`neuronserve chat` in a terminal and in a pipe, beside servers that say what was asked."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronserve import COMMAND
from neuronserve.loadtests.local_server import mock_command, running
from tests.api.serving import PATIENCE_S, ROOT, Server, environment, running_server, write_checkpoint
from tests.depth import thorough
from tests.terminal import Terminal, terminal

TEMPLATE = "{% for m in messages %}<|pad|>{{ m.content }}<|pad|>{% endfor %}"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose answer is the last message."""
    model = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    flags = ("--device", "echo", "--chat-template", TEMPLATE, "--api-key", "k", "--log-level", "debug")
    with running_server(model, *flags) as server:
        yield server


def chat(url: str, *flags: str, question: str = "", key: str = "k") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "chat", "--url", url, *flags],
        input=question,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(NEURONSERVE_API_KEY=key),
        cwd=ROOT,
        check=False,
    )


def test_a_piped_question_gets_the_answer_and_nothing_else(echo: Server) -> None:
    ended = chat(echo.url, question="What is\nan NPU? \N{GRINNING FACE}\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "What is\nan NPU? \N{GRINNING FACE}\n", "")


def test_any_endpoint_will_do_with_or_without_v1() -> None:
    with running(mock_command(1, 1)) as url:
        for each in (url, f"{url}/v1"):
            ended = chat(each, "--max-tokens", "4", question="Hello")
            assert (ended.returncode, ended.stderr) == (0, "")
            assert len(ended.stdout.split()) == 4


@pytest.mark.parametrize(
    ("flags", "question", "key", "code", "complaint"),
    [
        ((), " \n", "k", 2, "there is no question on stdin"),
        ((), "Hi", "wrong", 1, " answers 401: "),
        (("--model", "other"), "Hi", "k", 1, "answers 404: The model 'other' does not exist here"),
        thorough(("--temperature", "3"), "Hi", "k", 2, "--temperature: must be less than or equal to 2, not '3'"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    echo: Server, flags: tuple[str, ...], question: str, key: str, code: int, complaint: str
) -> None:
    ended = chat(echo.url, *flags, question=question, key=key)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert complaint in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_an_answer_that_nobody_reads_to_its_end_is_no_error(echo: Server) -> None:
    line = f"printf 'word %.0s' {{1..40}} | {' '.join(COMMAND)} chat --url {echo.url} | head -c 4"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True,
        text=True,
        env=environment(NEURONSERVE_API_KEY="k"),
        cwd=ROOT,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "word", "")


def test_where_nobody_listens_it_says_so() -> None:
    ended = chat("http://127.0.0.1:9", question="Hi")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no server answers at http://127.0.0.1:9: " in ended.stderr


@pytest.fixture
def person(echo: Server) -> Iterator[Terminal]:
    with terminal([*COMMAND, "chat", "--url", echo.url], NEURONSERVE_API_KEY="k") as made:
        made.expect(f"fake at {echo.url}; /help lists the commands")
        yield made


def ask(person: Terminal, words: str) -> str:
    """Type a line at the prompt; what is shown until the next prompt, without the line itself."""
    person.expect("> ")
    person.type(f"{words}\n")
    person.expect(f"{words}\n")
    return person.peek("\n> ")


def test_a_conversation_with_commands_ends_in_a_file(person: Terminal, tmp_path: Path) -> None:
    out = tmp_path / "talk.json"
    assert "/retry" in ask(person, "/help")
    assert "system prompt is set" in ask(person, "/system Be brief.")
    answer, _, summary = ask(person, "hello there").partition("\n")
    assert answer == "hello there"
    assert " tokens, " in summary
    assert "; on the accelerator " in summary
    assert ask(person, "/retry").startswith("hello there\n")
    assert "fake (in use)" in ask(person, "/model")
    assert "there is no model gpt" in ask(person, "/model gpt")
    assert "there is no /nonsense" in ask(person, "/nonsense")
    assert f"saved to {out}" in ask(person, f"/save {out}").replace("\n", "")
    assert "exists already" in ask(person, f"/save {out}").replace("\n", " ")
    assert json.loads(out.read_text()) == {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello there"},
            {"role": "assistant", "content": "hello there"},
        ],
    }
    assert "starts again" in ask(person, "/reset")
    assert "there is no question yet" in ask(person, "/retry")
    person.type("/quit\n")
    person.rest()
    assert person.process.wait(PATIENCE_S) == 0


def test_ctrl_d_ends_it(person: Terminal) -> None:
    person.expect("> ")
    person.type("\x04")
    person.rest()
    assert person.process.wait(PATIENCE_S) == 0


def test_a_model_that_writes_escape_sequences_moves_nothing(echo: Server, tmp_path: Path) -> None:
    """The question comes from a file, and the answer goes to a terminal."""
    question = tmp_path / "question"
    question.write_text("a\x1b[2J\x07b\n")
    line = f"{' '.join(COMMAND)} chat --url {echo.url} < {question}"
    with terminal(["sh", "-c", line], NEURONSERVE_API_KEY="k") as screen:
        assert screen.rest() == "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b\n"


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_the_server_hears_of_it(checkpoint: Path, hold: Path) -> None:
    """The answer is held after its first tokens; what comes then is the next question."""
    with (
        running_server(checkpoint, "--device", f"hold:{hold}") as server,
        terminal([*COMMAND, "chat", "--url", server.url, "--max-tokens", "50"]) as person,
    ):
        person.expect("> ")
        person.type("endless\n")
        person.expect("endless\n")
        person.expect_more()
        person.process.send_signal(signal.SIGINT)
        person.expect("stopped")
        hold.unlink()
        assert " tokens, " in ask(person, "again")


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file; while it is there, the server `hold:FILE` gives the first tokens and no more."""
    file = tmp_path / "hold"
    file.touch()
    return file


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")
