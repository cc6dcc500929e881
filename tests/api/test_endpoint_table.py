"""The table of docs/reference/http-api.md that compares with OpenAI and vLLM names every endpoint of this server."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.api.serving import ROOT

ROW = re.compile(r"\| (?P<endpoints>`[A-Z]+ /.*) \| [^|]+ \| [^|]+ \| (?P<here>[^|]+) \|")


def rows() -> dict[tuple[str, str], str]:
    """(method, path) -> what the column of this server says."""
    found: dict[tuple[str, str], str] = {}
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text()
    for line in page[page.index("| endpoint | OpenAI | vLLM | here |") :].splitlines()[2:]:
        row = ROW.fullmatch(line)
        if row is None:
            break
        for method, path in re.findall(r"`([A-Z]+) (/[^`]*)`", row["endpoints"]):
            assert (method, path) not in found
            found[method, path] = row["here"]
    return found


def test_it_names_every_endpoint_and_no_other(http: httpx.Client) -> None:
    pages = http.get("/openapi.json").json()["paths"]
    offered = {(method.upper(), path) for path, kinds in pages.items() for method in kinds}
    assert {endpoint for endpoint, here in rows().items() if not here.startswith("no")} == offered


@pytest.mark.parametrize(
    ("method", "path", "here"), [(*endpoint, here) for endpoint, here in rows().items() if here.startswith("no")]
)
def test_what_it_says_is_not_there_is_refused_so(http: httpx.Client, method: str, path: str, here: str) -> None:
    answer = http.request(method, path.replace("{model_id}", "fake"))
    error = answer.json()["error"]
    if "not_supported" in here:
        assert (answer.status_code, error["code"]) == (404, "not_supported")
        assert "It offers /v1/" in error["message"]
    else:
        assert answer.status_code in {404, 405}
        assert error["type"] == "invalid_request_error"
