"""The console's files over HTTP: their content, and the security policy."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from neuronserve.console.pages import FOLDER
from tests.api.serving import Server, running_server

MAX_BYTES = 350_000
OWN = sorted(path for path in FOLDER.rglob("*") if path.is_file() and "vendor" not in path.parts)
NAMES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["", *(f"static/{name}" for name in NAMES)])
def test_files_come_with_a_policy_that_allows_nothing_else(echo: Server, name: str) -> None:
    answer = httpx.get(f"{echo.url}/{name}")
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(f"{echo.url}/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_head_of_a_page_has_no_body(echo: Server) -> None:
    answer = httpx.head(echo.url)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("name", ["nothing.js", "../pages.py", "%2e%2e/pages.py", "vendor/../../pages.py"])
def test_nothing_but_its_files_is_served(echo: Server, name: str) -> None:
    with httpx.Client(base_url=echo.url) as client:
        answer = client.send(client.build_request("GET", f"/static/{name}"))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_all_files_together_are_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in NAMES) <= MAX_BYTES


def test_libraries_come_with_their_licences() -> None:
    text = (FOLDER / "vendor" / "LICENSES.txt").read_text()
    for file in (FOLDER / "vendor").iterdir():
        assert file.name == "LICENSES.txt" or file.name in text, file.name
    assert "Apache License" in text
    assert text.count("MIT License") >= 1


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_sources_name_no_other_host_and_hold_nothing_inline(path: Path) -> None:
    text = path.read_text()
    hosts = set(re.findall(r"https?://([\w.]+)", text)) - {"www.w3.org"}
    assert not hosts, f"{path.name} names {hosts}"
    assert len(text.splitlines()) <= 450
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", text)
    assert "innerHTML" not in text
    assert "eval(" not in text


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("js/")])
def test_modules_import_files_that_are_there(name: str) -> None:
    for imported in re.findall(r'^import .*from "(.+?)"', (FOLDER / name).read_text(), re.MULTILINE):
        assert (FOLDER / name).parent.joinpath(imported).resolve().is_file(), f"{name} imports {imported}"


@pytest.mark.slow
def test_no_console_means_none(echo_checkpoint: Path) -> None:
    with running_server(echo_checkpoint, "--device", "echo", "--no-console") as server:
        for path in ("/", "/static/console.css", "/console/events", "/console/choices"):
            assert httpx.get(server.url + path).status_code == 404
        assert httpx.get(f"{server.url}/v1/models").status_code == 200
