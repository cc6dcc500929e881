"""Conversations of the playground, in a real browser: kept, found, changed, and moved by files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Server
from tests.console.browsing import IN_BROWSER, Page, go, say

pytestmark = IN_BROWSER
KEY = "sesame"


def names(page: Page) -> list[str]:
    found: list[str] = page.locator(".conversations .name").all_inner_texts()
    return found


def two_conversations(page: Page, server: Server) -> None:
    go(page, server, "playground")
    say(page, "of ships")
    page.get_by_role("button", name="New conversation").click()
    page.get_by_label("Temperature").fill("0.5")
    say(page, "of whales")


def test_a_reload_opens_the_last_conversation_with_its_settings(page: Page, echo: Server) -> None:
    two_conversations(page, echo)
    page.reload()
    page.locator("article.assistant .figures", has_text="cost").wait_for()
    assert page.locator("article .text").all_inner_texts() == ["of whales", "of whales"]
    assert page.get_by_label("Temperature").input_value() == "0.5"
    assert names(page) == ["of whales", "of ships"]
    page.get_by_role("button", name="of ships").click()
    assert page.locator("article .text").all_inner_texts() == ["of ships", "of ships"]
    assert say(page, "and of sails").locator(".text").inner_text() == "and of sails"
    page.reload()
    page.locator("article").nth(3).wait_for()
    assert names(page) == ["of ships", "of whales"]


def test_conversations_are_found_renamed_and_deleted(page: Page, echo: Server) -> None:
    two_conversations(page, echo)
    page.get_by_label("Search").fill("SHIPS")
    page.locator(".name", has_text="whales").wait_for(state="detached")
    assert names(page) == ["of ships"]
    page.get_by_label("Search").fill("")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Name of the conversation").fill("The sea")
    page.keyboard.press("Enter")
    page.locator(".name", has_text="The sea").wait_for()
    page.reload()
    page.locator(".name", has_text="The sea").wait_for()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.locator(".name", has_text="The sea").wait_for(state="detached")
    page.reload()
    page.locator(".name", has_text="ships").wait_for()
    assert names(page) == ["of ships"]


def test_an_answer_goes_on_behind_another_conversation_and_is_kept_when_cut(page: Page, slow: Server) -> None:
    page.goto(f"{slow.url}/#/playground")
    page.get_by_label("API key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    page.locator(".lamp", has_text="ready").wait_for()
    page.get_by_label("Message", exact=True).fill("a long story")
    page.keyboard.press("Enter")
    length = "document.querySelector('article.assistant .text')?.textContent.length ?? 0"
    page.wait_for_function(f"() => {length} > 1")
    before = page.evaluate(length)
    page.get_by_role("button", name="New conversation").click()
    page.locator("article").first.wait_for(state="detached")
    page.get_by_role("button", name="a long story").click()
    page.wait_for_function(f"() => {length} > {before}")
    page.get_by_role("button", name="Stop").wait_for()
    page.wait_for_timeout(1500)  # it is kept each second
    page.reload()
    page.locator(".figures", has_text=re.compile("interrupted|stopped")).wait_for()
    assert page.evaluate(length) >= before
    assert page.locator(".fault:not(:empty)").count() == 0


def test_a_file_brings_conversations_to_another_browser(page: Page, echo: Server, tmp_path: Path) -> None:
    page.goto(echo.url)
    page.get_by_label("Show how sure the model was").check()
    two_conversations(page, echo)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    assert len(json.loads(file.read_text())["conversations"]) == 2
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    for _ in range(2):  # the second time brings nothing
        page.locator(".conversations input[type=file]").set_input_files(file)
    page.get_by_text("0 conversations imported.").wait_for()
    page.reload()
    page.locator(".name", has_text="whales").click()
    assert names(page) == ["of whales", "of ships"]
    assert page.locator("article.assistant .token").first.inner_text() == "o"


def conversation(**changes: Any) -> dict[str, Any]:
    message = {"id": "a", "parent": None, "role": "user", "content": "hello"}
    return {"id": "c", "title": "", "changed_ms": 1, "settings": {}, "messages": [message], "leaf": "a"} | changes


@pytest.mark.parametrize(
    ("conversations", "fault"),
    [
        ([conversation(settings={"tools": "none"})], "conversations[0].settings.tools is no list"),
        ([conversation(messages=[{"id": "a", "role": "user"}])], "messages[0].content is no string"),
        ([conversation(messages=[{"id": "a", "parent": "a", "role": "user", "content": ""}])], "follows a later one"),
        ([conversation(messages=[{"id": "a", "role": "root", "content": ""}])], "root is none of the roles"),
        ([conversation(), conversation(leaf="b")], "conversations[1]: there is no message b"),
        (None, '"format" is not'),
    ],
)
def test_other_files_are_refused_and_change_nothing(page: Page, echo: Server, conversations: Any, fault: str) -> None:
    go(page, echo, "playground")
    kind = {"format": "neuronserve conversations", "version": 1} if conversations else {}
    text = json.dumps({**kind, "conversations": conversations}).encode()
    given = {"name": "f.json", "mimeType": "application/json", "buffer": text}
    page.locator(".conversations input[type=file]").set_input_files(given)
    page.get_by_text(fault).wait_for()
    page.reload()
    page.get_by_role("button", name="New conversation").wait_for()
    assert names(page) == []
