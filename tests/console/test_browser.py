"""The console in a real browser: `make ui-test`. Needs Debian's chromium and the extra `ui`, and is skipped without."""

from __future__ import annotations

import os
import re
import signal
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.api.serving import ROOT, Server, running_server
from tests.console.browsing import ADMIN, IN_BROWSER, KEY, Page, go, go_with_key, say

AXE = Path(os.environ.get("AXE_JS", ROOT / ".venv/ui/node_modules/axe-core/axe.min.js"))
PAGES = ("device", "playground", "cost", "requests", "planner")
pytestmark = IN_BROWSER


def test_an_answer_streams_with_what_it_costs(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    answer = say(page, "the sea is wide")
    assert answer.locator(".text").inner_text() == "the sea is wide"
    figures = answer.locator(".figures").inner_text()
    assert "16 out" in figures
    assert re.search(r"cost\s+\$0\.\d+", figures)
    assert re.search(r"on the part\s+[\d.]+ (ms|µs|s)", figures)
    page.get_by_role("button", name="Regenerate").click()
    page.locator("article.assistant .figures").wait_for()
    assert page.locator("article").count() == 2


def test_a_stopped_answer_keeps_what_came(page: Page, slow: Server) -> None:
    go_with_key(page, slow, "playground")
    page.get_by_label("Message", exact=True).fill("go on and on")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").wait_for()
    page.wait_for_function("() => document.querySelector('article.assistant .text')?.textContent.length > 3")
    page.get_by_role("button", name="Stop").click()
    page.locator("article.assistant .figures", has_text="stopped").wait_for()
    assert page.locator("article.assistant .fault").count() == 0


def test_a_tool_is_defined_called_and_answered(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    page.get_by_role("button", name="Add a tool").click()
    answer = say(page, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>')
    assert answer.locator(".call").inner_text() == 'get_weather({"city": "Oslo"})'
    page.get_by_label("What get_weather returns").fill("12 degrees")
    page.get_by_role("button", name="Send results").click()
    page.locator("article.tool").wait_for()
    page.wait_for_function("() => document.querySelectorAll('article.assistant .figures').length === 2")
    assert page.locator("article.assistant").last.locator(".text").inner_text() == "12 degrees"


def test_tokens_are_coloured_and_walked_through_by_keys(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    page.get_by_label("Show how sure the model was").check()
    answer = say(page, "abc")
    tokens = answer.locator(".token")
    assert tokens.all_inner_texts()[:3] == ["a", "b", "c"]
    assert tokens.first.get_attribute("class") == "token heat-2"
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    assert tokens.nth(1).get_attribute("aria-pressed") == "true"
    assert answer.locator("caption").inner_text() == "Instead of b"


def test_the_request_is_shown_as_code_that_runs(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    page.get_by_label("System prompt").fill('it\'s "quoted"')
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Message", exact=True).fill("hello")
    page.get_by_role("button", name="Show code").click()
    page.get_by_role("button", name="Python", exact=True).click()
    source = page.locator("dialog.code code").inner_text()
    said: list[str] = []
    exec(source, {"print": lambda text, **_: said.append(text)})  # our own page wrote it
    assert "".join(said) == "hello"
    page.keyboard.press("Escape")
    page.locator("dialog.code[open]").wait_for(state="detached")


def test_a_key_is_asked_for_and_the_map_follows_a_request(page: Page, slow: Server) -> None:
    page.goto(f"{slow.url}/#/device")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    page.get_by_label("API key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not accept the key").wait_for()
    page.get_by_label("API key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    page.locator(".lamp", has_text="ready").wait_for()
    body = {"messages": [{"role": "user", "content": "y" * 200}], "max_tokens": 250, "stream": True}
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", f"{slow.url}/v1/chat/completions", json=body, headers=headers) as answer:
        page.locator(".blocks canvas:not([data-held='0'])").wait_for()
        page.get_by_role("link", name="Requests").click()
        page.get_by_label("Admin key, to end requests").fill(ADMIN)
        page.keyboard.press("Enter")
        page.get_by_role("button", name=re.compile("Abort")).click()
        page.get_by_text(re.compile("Ended .")).first.wait_for()
        answer.read()
        assert b"An operator has ended this request." in answer.content
    page.get_by_role("cell", name=re.compile("abort")).first.wait_for()
    page.get_by_role("link", name="Device").click()
    page.locator(".blocks canvas[data-held='0']").wait_for()


def test_a_plan_is_drawn_linked_to_and_downloaded(page: Page, echo: Server, tmp_path: Path) -> None:
    go(page, echo, "planner")
    page.get_by_role("combobox", name="Model").fill("llama-3.1-8b")
    page.keyboard.press("Tab")
    page.locator(".point.best").first.wait_for()
    page.get_by_label("Requests a second").first.fill("8")
    with page.expect_response(lambda each: '"request_rate":8' in (each.request.post_data or "")):  # not the plan before
        page.keyboard.press("Tab")
    page.get_by_text(re.compile("configurations of 4 instances")).wait_for()
    assert page.url.endswith("#/planner?model=llama-3.1-8b&request_rate=8")
    front = page.locator(".pareto .best")
    number = front.count()
    assert number > 2
    front.first.focus()
    page.keyboard.press("Enter")
    assert front.first.get_attribute("aria-pressed") == "true"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download deployment files").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    with zipfile.ZipFile(file) as folder:
        assert "README.md" in folder.namelist()
    page.reload()
    page.get_by_text(re.compile("configurations of 4 instances")).wait_for()
    assert page.get_by_label("Requests a second").first.input_value() == "8"
    assert front.count() == number


def test_traffic_is_planned_for(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    say(page, "one")
    say(page, "two and a bit more")
    page.get_by_role("link", name="Cost").click()
    page.get_by_role("button", name="Plan for this traffic").click()
    page.get_by_text("at the rate at which they came").wait_for()
    assert page.locator("table.plan tbody tr").count() > 5


def test_dark_is_as_the_system_has_it_or_as_chosen(page: Page, echo: Server) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    go(page, echo, "device")
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) == dark
    page.reload()
    page.locator(".lamp", has_text="ready").wait_for()
    assert page.evaluate(ground) == dark


def test_keys_alone_reach_everything(page: Page, echo: Server) -> None:
    go(page, echo, "device")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Playground"
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'main'")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "draft":
            break
    page.keyboard.type("by keys alone")
    page.keyboard.press("Enter")
    page.locator(".figures").wait_for()
    assert page.locator("article.assistant .text").inner_text() == "by keys alone"


def test_a_server_that_dies_and_comes_back_is_found_again(page: Page, echo_checkpoint: Path) -> None:
    with running_server(echo_checkpoint, "--device", "echo") as first:
        go(page, first, "playground")
        first.signal(signal.SIGKILL)
        first.wait()
        page.locator(".lamp", has_text="not reachable").wait_for()
        with running_server(echo_checkpoint, "--device", "echo", "--port", str(first.port)):
            page.locator(".lamp", has_text="ready").wait_for()
            assert say(page, "here again").locator(".text").inner_text() == "here again"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [360, 390, 800, 1100, 1280])
def test_screens_scroll_one_way_only(page: Page, echo: Server, name: str, width: int) -> None:
    body = {"messages": [{"role": "user", "content": "for the table"}], "max_tokens": 8}
    httpx.post(f"{echo.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    page.set_viewport_size({"width": width, "height": 740})
    go(page, echo, "planner?model=llama-3.1-8b" if name == "planner" else name)
    if name == "planner":
        page.locator("table.plan td").first.wait_for()
        heights = page.evaluate("[...document.querySelectorAll('.tick')].map((t) => t.getBoundingClientRect().height)")
        assert min(heights) >= 9, "figures of the axes can be read"
    page.wait_for_timeout(1500)  # a record, so that the page is full
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "[...document.querySelectorAll('.top nav a')].every((a) => a.getBoundingClientRect().right <= innerWidth)"
    )
    tables = "[...document.querySelectorAll('.scroll:has(table)')].map((each) => each.scrollWidth - each.clientWidth)"
    assert set(page.evaluate(tables)) <= {0}
    if name == "requests":
        assert page.locator("table.requests tbody tr").count() >= 1


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: `make ui-test` installs it")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_serious_fault(page: Page, echo: Server, name: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    if name == "playground":
        go(page, echo, name)
        page.get_by_role("button", name="Add a tool").click()
        page.get_by_label("Show how sure the model was").check()
        say(page, "abc")
    elif name == "planner":
        go(page, echo, "planner?model=llama-3.1-8b")
        page.locator(".point.best").first.wait_for()
    else:
        go(page, echo, name)
        page.wait_for_timeout(1500)
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]
    assert not serious
