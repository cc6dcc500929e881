"""Links and anchors of the pages, and the navigation of the site, checked without MkDocs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.test_architecture import ROOT
from tests.test_language import path_ends

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OUTSIDE = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "helm/README.md")]
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
FOREIGN = frozenset({"convert_hf_to_gguf.py", "modules/attention/gqa.py"})  # files of other projects
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text without blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "code", FENCE.sub("", page.read_text()))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Ids of the headings, as Python-Markdown makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        found.append(f"{slug}_{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=name_of)
def test_links_and_anchors_exist(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{link}: no such file"
        assert page in OUTSIDE or path.is_relative_to(DOCS), f"{link}: the site has nothing outside of docs/"
        assert not anchor or anchor in anchors(path), f"{link}: no such heading"


def test_the_navigation_has_every_page_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(leaves(site["nav"])) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_agents_find_every_page() -> None:
    listed = re.findall(r"^- \[([^]]+)\]\((.+)\)$", (DOCS / "llms.txt").read_text(), re.MULTILINE)
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert listed == re.findall(r"^ *- (.+): (\S+\.md)$", nav, re.MULTILINE)


def leaves(node: object) -> list[str]:
    if isinstance(node, str):
        return [node]
    assert isinstance(node, list | dict)
    below = node.values() if isinstance(node, dict) else node
    return [leaf for each in below for leaf in leaves(each)]


def test_pages_load_nothing_from_elsewhere() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in site
    assert not re.search(r"extra_(javascript|css)|https?://", site)
    for page in PAGES:
        assert not re.search(r"!\[[^]]*\]\(https?:|<(script|iframe|img|link)\b", prose(page)), page


def test_the_page_of_the_package_index_links_to_nothing_relative() -> None:
    assert all(re.match("https?:", link) for link in LINK.findall(prose(ROOT / "PACKAGE.md")))


def test_the_pages_are_few_words() -> None:
    """Words have a letter or a digit, so that bars of tables do not count."""
    assert sum(len(re.findall(r"\S*\w\S*", page.read_text())) for page in PAGES) <= 40_000


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


@pytest.mark.parametrize("page", [page for page in PAGES if "internals" in page.parts], ids=name_of)
def test_files_that_internals_name_exist(page: Path) -> None:
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|json|csv))`", page.read_text())
    assert sorted({path for path in named if path not in path_ends() | FOREIGN}) == []


def test_every_picture_is_shown() -> None:
    shown = "".join(page.read_text() for page in (*PAGES, *OUTSIDE))
    assert not [picture.name for picture in (DOCS / "images").iterdir() if picture.name not in shown]
