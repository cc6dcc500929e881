"""Conversations of the playground, in a real browser: kept, found, changed, and moved by files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Server
from tests.console.browsing import IN_BROWSER, Page, go, go_with_key, say

pytestmark = IN_BROWSER


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


def test_an_answer_goes_on_behind_another_conversation_and_after_a_reload(page: Page, slow: Server) -> None:
    go_with_key(page, slow, "playground")
    page.get_by_label("Message", exact=True).fill("a long story")
    page.keyboard.press("Enter")
    length = "document.querySelector('article.assistant .text')?.textContent.length ?? 0"
    page.wait_for_function(f"() => {length} > 1")
    before = page.evaluate(length)
    page.get_by_role("button", name="New conversation").click()
    page.locator("article").first.wait_for(state="detached")
    page.get_by_role("button", name="a long story").click()
    page.wait_for_function(f"() => {length} > {before}")
    page.reload()
    page.wait_for_function(f"() => {length} > {before}")
    page.get_by_role("button", name="Stop").click()
    page.locator(".figures", has_text="stopped").wait_for()
    assert page.locator(".fault:not(:empty)").count() == 0


def test_a_file_brings_conversations_to_another_browser(page: Page, echo: Server, tmp_path: Path) -> None:
    go(page, echo, "playground")
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


def bring(page: Page, conversations: Any) -> None:
    """Import a file of them; None makes a file of another format."""
    kind = {"format": "neuronserve conversations", "version": 1} if conversations else {}
    text = json.dumps({**kind, "conversations": conversations}).encode()
    given = {"name": "f.json", "mimeType": "application/json", "buffer": text}
    page.locator(".conversations input[type=file]").set_input_files(given)


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
    bring(page, conversations)
    page.get_by_text(fault).wait_for()
    page.reload()
    page.get_by_role("button", name="New conversation").wait_for()
    assert names(page) == []


def texts(page: Page) -> list[str]:
    found: list[str] = page.locator("article .text").all_inner_texts()
    return found


def test_a_changed_message_and_a_second_answer_are_versions_that_stay(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    say(page, "of ships")
    say(page, "and of sails")
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Changed message").fill("of whales")
    page.get_by_role("button", name="Send as a new version").click()
    page.locator("article.assistant .text", has_text="of whales").wait_for()
    page.locator("article.assistant .figures").wait_for()
    assert texts(page) == ["of whales", "of whales"]
    page.get_by_role("button", name="Regenerate").click()
    page.locator("article.assistant", has_text="2 of 2").locator(".figures").wait_for()
    page.locator("article.user").get_by_role("button", name="Version before").click()
    page.locator("article").nth(3).wait_for()
    assert texts(page) == ["of ships", "of ships", "and of sails", "and of sails"]
    page.reload()
    page.locator("article").nth(3).wait_for()
    page.get_by_role("button", name="Version after").click()
    page.locator("article", has_text="sails").first.wait_for(state="detached")
    assert texts(page) == ["of whales", "of whales"]
    assert say(page, "on").locator(".text").inner_text() == "on"


def test_messages_are_copied_as_they_were_written(page: Page, echo: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, echo, "playground")
    answer = say(page, "**bold** & `code`")
    answer.get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("navigator.clipboard.readText()") == "**bold** & `code`"
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as over plain HTTP
    page.evaluate("document.oncopy = () => (window.copied = document.activeElement.value)")
    answer.get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("window.copied") == "**bold** & `code`"


def test_a_starter_prompt_is_a_draft(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    starter = page.get_by_role("list", name="Prompts to begin with").get_by_role("button").first
    text = starter.inner_text()
    starter.click()
    assert page.get_by_label("Message", exact=True).input_value() == text
    page.keyboard.press("Enter")
    page.locator("article.assistant .figures").wait_for()
    assert texts(page) == [text, text]
    assert page.locator(".starters").count() == 0


def test_a_model_that_is_not_served_is_named(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    bring(page, [conversation(settings={"model": "whale-7b"})])
    page.locator("option", has_text="whale-7b (not served here)").wait_for(state="attached")
    assert page.get_by_role("combobox", name="Model").input_value() == "whale-7b"
    say(page, "hello").locator(".fault", has_text="whale-7b").wait_for()
    page.get_by_role("combobox", name="Model").select_option("")
    answer = say(page, "again")
    assert answer.get_by_role("heading").inner_text() == "Model fake"
