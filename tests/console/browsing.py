"""What tests of the pages in a real browser share: their marks, and the first steps of a user."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.api.serving import Server

CHROMIUM = shutil.which("chromium")
IN_BROWSER = [
    pytest.mark.ui,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]
Page = Any
KEY, ADMIN = "sesame", "master"


def go(page: Page, server: Server, name: str) -> None:
    page.goto(f"{server.url}/#/{name}")
    page.locator(".lamp", has_text="ready").wait_for()


def go_with_key(page: Page, server: Server, name: str) -> None:
    """Open a page of a server that asks for a key."""
    page.goto(f"{server.url}/#/{name}")
    page.get_by_label("API key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    page.locator(".lamp", has_text="ready").wait_for()


def say(page: Page, text: str) -> Any:
    """Send a message; the model's last answer, once it is whole."""
    number = page.locator("article.assistant").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    answer = page.locator("article.assistant").nth(number)
    answer.locator(".figures").wait_for()
    return answer
