"""Markdown of answers in a real browser: what it becomes, and that none of it runs or loads anything."""

from __future__ import annotations

import pytest

from tests.api.serving import Server
from tests.console.browsing import IN_BROWSER, Page, go, say

pytestmark = IN_BROWSER
TAKE = "document.title='taken'"
ELEMENTS = ".text :is(script, img, style, iframe, svg, math, form, input, object, embed, base, meta, link, video)"
HOSTILE = {
    "script": f"<script>{TAKE}</script>",
    "handler": f'<img src=x onerror="{TAKE}">',
    "block": f"<div>\n<svg onload={TAKE}><style>*{{display:none}}</style>",
    "inline": f'so *it* <iframe srcdoc="<script>parent.{TAKE}</script>"></iframe> ends',
    "mutation": f"<math><mtext><table><mglyph><style><img src=x onerror={TAKE}></style></mglyph></table></math>",
    "link": f"[a](javascript:{TAKE}) [b](JaVaScRiPt&colon;{TAKE}) [c](data:text/html,<script>{TAKE}</script>)",
    "reference": f"[a][b]\n\n[b]: <java&#9;script:{TAKE}>",
    "automatic": f"<javascript:{TAKE}> <vbscript:x>",
    "title": f'[a](https://a.example/ "x\' onmouseover=\'{TAKE}" onclick="{TAKE}")',
    "picture": f'![x" onerror="{TAKE}](https://a.example/b.png) ![a](javascript:{TAKE})',
    "fence": f'```"><img src=x onerror={TAKE}>\n</code></pre><script>{TAKE}</script>\n```',
    "table": f"|a|\n|-|\n|<img src=x onerror={TAKE}>|",
    "formula": f"$$<img src=x onerror={TAKE}>$$",
    "depth": ">" * 150 + f"<img src=x onerror={TAKE}>",
}


@pytest.mark.parametrize("attack", HOSTILE.values(), ids=HOSTILE)
def test_nothing_in_an_answer_runs_or_loads(page: Page, echo: Server, attack: str) -> None:
    go(page, echo, "playground")
    page.get_by_label("Max tokens").fill("400")
    answer = say(page, attack)
    assert answer.locator(".text").inner_text().strip()
    assert answer.locator(ELEMENTS).count() == 0
    attributes = "e => [...e.querySelectorAll('.text *')].flatMap((each) => [...each.attributes].map((a) => a.name))"
    names = {"href", "title", "target", "rel", "class", "tabindex", "align", "start"}
    assert set(answer.evaluate(attributes)) <= names
    for link in answer.locator("a").all():
        assert (link.get_attribute("href") or "https:").startswith("https:")
        if link.get_attribute("href") is None:
            link.click()
    page.reload()
    page.locator("article.assistant .text").wait_for()
    assert page.title() == "Playground – neuronserve"


@pytest.mark.parametrize(
    ("text", "selector", "shown"),
    [
        ("# Sea\n\nwide", "h3", "Sea"),
        ("a **b** _c_ ~~d~~", "strong + em + del", "d"),
        ("3. one\n   - [x] two", "ol[start='3'] ul li", "☑ two"),
        ("|a|b|\n|-|-:|\n|1|`2`|", "tbody td[align=right] code", "2"),
        ("```python\nx = '<b>'\n```", "pre code", "x = '<b>'\n"),
        ("> far", "blockquote p", "far"),
        ("one\ntwo", "p:has(br)", "one\ntwo"),
        ("see https://a.example/b", "a[href='https://a.example/b'][rel='noopener noreferrer'][target=_blank]", None),
        (r"so \(x_1 * y_1\) is", "p > code", r"\(x_1 * y_1\)"),
        ("a <b>c</b>", "p", "a <b>c</b>"),
    ],
)
def test_markdown_becomes_elements(page: Page, echo: Server, text: str, selector: str, shown: str | None) -> None:
    go(page, echo, "playground")
    found = say(page, text).locator(".markdown").locator(selector)
    assert found.inner_text().strip() == (shown or text.split(" ")[1]).strip()
    assert page.locator("article.user .text").inner_text() == text


def test_code_is_copied(page: Page, echo: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, echo, "playground")
    answer = say(page, "```\na < b\n```")
    answer.locator("pre").hover()
    answer.get_by_role("button", name="Copy code").click()
    assert page.evaluate("navigator.clipboard.readText()") == "a < b\n"
