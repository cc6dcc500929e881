"""Answers whose stream breaks: the browser asks for the rest, as a router would, and the text is that of one stream."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Server, running_server, until, write_checkpoint
from tests.console.browsing import IN_BROWSER, Page, go
from tests.console.test_conversations import bring, conversation

pytestmark = IN_BROWSER
KEPT = """() => new Promise((resolve) => {
    const opening = indexedDB.open("neuronserve", 1);
    opening.onsuccess = () => {
        const all = opening.result.transaction("conversations").objectStore("conversations").getAll();
        all.onsuccess = () => resolve(all.result[0]?.messages[1]);
    };
})"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("broken"))


@pytest.fixture
def resumed(page: Page) -> list[dict[str, Any]]:
    """What the page's requests for answers say about where they go on."""
    asked: list[dict[str, Any]] = []

    def note(request: Any) -> None:
        if request.url.endswith("/v1/chat/completions"):
            asked.append(json.loads(request.headers["x-neuronserve-resume"]))

    page.on("request", note)
    return asked


def begin_answer(page: Page, server: Server) -> None:
    """Ask, with a temperature and without a seed, and wait until some of the answer is kept."""
    go(page, server, "playground")
    page.get_by_label("Temperature").fill("1")
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Message", exact=True).fill("tell me more")
    page.keyboard.press("Enter")
    until(lambda: page.evaluate(f"({KEPT})().then((kept) => kept?.resume?.entries.length > 2)"))


def whole_text(server: Server, asked: dict[str, Any]) -> str:
    """Return the answer that the first of the page's requests has without a break."""
    messages = [{"role": "user", "content": "tell me more"}]
    body = {"messages": messages, "temperature": 1, "max_tokens": 40, "stream": True}
    headers = {"X-Neuronserve-Resume": json.dumps(asked)}
    lines = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])


def test_a_reload_goes_on_with_the_rest_of_the_text(
    page: Page, checkpoint: Path, tmp_path: Path, resumed: list[dict[str, Any]]
) -> None:
    (file := tmp_path / "hold").touch()
    with running_server(checkpoint, "--device", f"hold:{file}") as server:
        begin_answer(page, server)
        page.reload()
        page.get_by_role("button", name="Stop").wait_for()
        file.unlink()
        page.locator("article.assistant .figures", has_text="40 out").wait_for()
        assert page.evaluate(KEPT)["content"] == whole_text(server, resumed[0])
        assert resumed[1]["num_events"] > 2
        assert resumed[1]["num_journal_bytes"] > 100
        page.reload()
        page.locator("article.assistant .figures", has_text="40 out").wait_for()
        assert page.get_by_role("button", name="Continue").count() == 0
        assert len(resumed) == 2


def test_a_server_that_dies_and_comes_back_goes_on_with_its_answers(
    page: Page, checkpoint: Path, resumed: list[dict[str, Any]]
) -> None:
    with running_server(checkpoint, "--device", "slow:0.1") as first:
        begin_answer(page, first)
        first.signal(signal.SIGKILL)
        first.wait()
        page.get_by_text("The connection is lost").wait_for(state="attached")
        with running_server(checkpoint, "--device", "slow:0.1", "--port", str(first.port)) as second:
            page.locator("article.assistant .figures", has_text="40 out").wait_for()
            assert page.evaluate(KEPT)["content"] == whole_text(second, resumed[0])


def test_what_cannot_go_on_by_itself_can_be_continued_or_stopped(page: Page, checkpoint: Path, tmp_path: Path) -> None:
    (file := tmp_path / "hold").touch()
    with running_server(checkpoint, "--device", f"hold:{file}") as server:
        begin_answer(page, server)
        page.route("**/chat/completions", lambda route: route.fulfill(status=401, body="{}"))
        page.reload()
        page.locator("article.assistant .fault", has_text="401").wait_for()
        page.keyboard.press("Escape")  # the dialog that asks for a key
        page.unroute("**/chat/completions")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("button", name="Stop").click()
        page.locator("article.assistant .figures", has_text="stopped").wait_for()
        assert page.get_by_role("button", name="Continue").count() == 0
        file.unlink()


def test_a_file_sends_no_request(page: Page, echo: Server, resumed: list[dict[str, Any]]) -> None:
    resume = {"key": "0" * 32, "created": 1, "fingerprint": "", "entries": [], "num_events": 0, "body": "{}"}
    question = conversation()["messages"][0]
    answer = {"id": "b", "parent": "a", "role": "assistant", "content": "wide", "resume": resume}
    go(page, echo, "playground")
    bring(page, [conversation(messages=[question, answer], leaf="b")])
    page.locator("article.assistant .figures", has_text="interrupted").wait_for()
    page.reload()
    page.locator("article.assistant .figures", has_text="interrupted").wait_for()
    assert not resumed
