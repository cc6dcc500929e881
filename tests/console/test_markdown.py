"""Markdown of answers in a real browser: what it becomes, and that none of it runs or loads anything."""

from __future__ import annotations

import pytest

from tests.api.serving import Server
from tests.console.browsing import IN_BROWSER, Page, go, say

pytestmark = IN_BROWSER
TAKE = "document.title='taken'"
ELEMENTS = ".text :is(script, img, style, iframe, svg, form, input, object, embed, base, meta, link, video)"
MATHML = {"mrow", "mi", "mo", "mn", "msup"}
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
    "nesting": "$" + r"\bar" * 45 + "x$",
    "depth": ">" * 150 + f"<img src=x onerror={TAKE}>",
}


@pytest.mark.parametrize("attack", HOSTILE.values(), ids=HOSTILE)
def test_nothing_in_an_answer_runs_or_loads(page: Page, echo: Server, attack: str) -> None:
    go(page, echo, "playground")
    page.get_by_label("Max tokens").fill("400")
    answer = say(page, attack)
    assert answer.locator(".text").inner_text().strip()
    assert answer.locator(ELEMENTS).count() == 0
    assert set(answer.evaluate("e => [...e.querySelectorAll('math *')].map((each) => each.localName)")) <= MATHML
    attributes = "e => [...e.querySelectorAll('.text *')].flatMap((each) => [...each.attributes].map((a) => a.name))"
    names = {"href", "title", "target", "rel", "class", "tabindex", "align", "start", "display", "stretchy"}
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
        (r"so \(x_1 * \unknown\) is", "p > code", r"\(x_1 * \unknown\)"),
        ("for $5 and $6 or `$x$`", "p:not(:has(math)) > code", "$x$"),
        ("a <b>c</b>", "p", "a <b>c</b>"),
    ],
)
def test_markdown_becomes_elements(page: Page, echo: Server, text: str, selector: str, shown: str | None) -> None:
    go(page, echo, "playground")
    found = say(page, text).locator(".markdown").locator(selector)
    assert found.inner_text().strip() == (shown or text.split(" ")[1]).strip()
    assert page.locator("article.user .text").inner_text() == text


FORMULAS = {
    r"$\frac{a}{b}$": "mfrac(mrow(a) mrow(b))",
    r"\(x_1^{2}\)": "msubsup(x 1 mrow(2))",
    r"$f'(x)$": "msup(f ′) ( x )",
    r"$$\sum_{i=1}^n i$$": "munderover(∑ mrow(i = 1) n) i",
    r"$\sum_i$": "msub(∑ i)",
    r"\[\lim_{x \to 0} \sin x\]": "munder(lim mrow(x → 0)) sin x",
    r"$\sqrt[3]{x} - \sqrt 2$": "mroot(mrow(x) 3) − msqrt(2)",
    r"$\left\{ a \middle.$": None,
    r"$\left( a \right] \mathbb{R} \mathbf{v2}$": "mrow(( a ]) mrow(ℝ) mrow(𝐯 𝟐)",
    r"$\hat{y} \text{ if } \underbrace{a}_{b}$": "mover(mrow(y) ^) \u00a0if\u00a0 munder(munder(mrow(a) ⏟) mrow(b))",
    "$$\n\\begin{pmatrix} 1 & 2 \\\\\n- 3 & 4 \\end{pmatrix}\n$$": (
        "mrow(( mtable(mtr(mtd(1) mtd(2)) mtr(mtd(− 3) mtd(4))) ))"
    ),
    r"$\begin{cases} a \\[2pt] b \end{cases}$": "mrow({ mtable(mtr(mtd(a)) mtr(mtd(b))))",
    r"$\mathrm{d}x \constructor$": None,
    r"$a & b$": None,
    r"$\frac{1}$": None,
    r"$x_$": None,
    r"$\begin{pmatrix} 1 \end{bmatrix}$": None,
}
TREE = """(math) => {
    const trees = (e) => [...e.children].map(tree).join(" ");
    const tree = (e) => (e.childElementCount ? `${e.localName}(${trees(e)})` : e.textContent);
    return trees(math);
}"""


def test_formulas_become_mathml_or_stay_source(page: Page, echo: Server) -> None:
    go(page, echo, "playground")
    page.get_by_label("Max tokens").fill("400")
    for begin in range(0, len(FORMULAS), 4):
        asked = list(FORMULAS)[begin : begin + 4]
        page.get_by_role("button", name="New conversation").click()
        page.locator("article").first.wait_for(state="detached")
        answer = say(page, "\n\n".join(asked))
        drawn = [answer.locator("math").nth(i).evaluate(TREE) for i in range(answer.locator("math").count())]
        assert drawn == [FORMULAS[each] for each in asked if FORMULAS[each] is not None]
        assert answer.locator("code").all_inner_texts() == [each for each in asked if FORMULAS[each] is None]


def test_code_is_copied(page: Page, echo: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, echo, "playground")
    answer = say(page, "```\na < b\n```")
    answer.locator("pre").hover()
    answer.get_by_role("button", name="Copy code").click()
    assert page.evaluate("navigator.clipboard.readText()") == "a < b\n"
