"""The page of `make fidelity`: counts of results, of the code and of the kept accuracy, with failures by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuronserve.planner.validate.releases import releases
from tools.fidelity import BODIES, SUITES, Score, main, of_neuron, of_others, of_tests
from tools.memory_accounts import ACCOUNTS, table

SHAPES_FILE, CLIENT_FILE, *_ = SUITES
SHAPES, CLIENT, *OTHERS = (path.removesuffix(".py").replace("/", ".") for path in SUITES)
RESULTS = f"""<testsuites><testsuite>
<testcase classname="{SHAPES}" name="test_a"/>
<testcase classname="{SHAPES}" name="test_b[x|y]"><failure message="assert 1 == 2">trace</failure></testcase>
<testcase classname="{SHAPES}.TestIn" name="test_c"><properties/></testcase>
<testcase classname="{CLIENT}_more" name="test_of_another_file"/>
<testcase classname="{CLIENT}" name="test_d"><skipped message="no client"/></testcase>
{"".join(f'<testcase classname="{module}" name="test_e"/>' for module in OTHERS)}
</testsuite></testsuites>"""
PAGE = """
| endpoint | OpenAI | vLLM | here |
|---|---|---|---|
| `POST /v1/a`, `GET /v1/a/{id}` | yes | no | yes |
| `POST /v1/b` | yes | behind a flag | no: 404 |
| `GET /c` | no | yes | yes |

| `POST /props` | not a row of that table |
"""


def by_title(scores: list[Score], word: str) -> Score:
    (found,) = (score for score in scores if word in score.title)
    return found


def test_results_are_counted_by_suite_and_failures_have_their_names() -> None:
    scores = list(of_tests(RESULTS))
    assert [(score.suite, score.kept, score.total) for score in scores[:2]] == [
        (SHAPES_FILE, 2, 3),
        (CLIENT_FILE, 0, 1),
    ]
    assert scores[0].failures == [("test_b[x|y]", "failure assert 1 == 2")]
    assert scores[1].failures == [("test_d", "skipped no client")]
    assert [score.total for score in of_tests("<testsuites/>")] == [0] * len(SUITES)


def test_endpoints_are_those_that_the_column_says_and_the_last_one_offers() -> None:
    scores = list(of_others(PAGE))
    openai, vllm = by_title(scores, "Endpoints of OpenAI"), by_title(scores, "Endpoints of vLLM")
    assert (openai.kept, openai.total, openai.failures) == (2, 3, [("POST /v1/b", "no: 404")])
    assert (vllm.kept, vllm.total, vllm.failures) == (1, 2, [("POST /v1/b", "no: 404")])


def test_a_parameter_is_kept_if_the_body_has_it() -> None:
    score = by_title(list(of_others(PAGE)), "Parameters")
    names = dict(score.failures)
    assert "/v1/chat/completions audio" in names
    assert "/v1/chat/completions messages" not in names
    assert score.total == sum(len(theirs.__annotations__) for theirs, _ in BODIES.values())


def test_vllms_cases_are_those_of_the_table_of_parsers(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "reference" / "http-api.md").read_text()
    counts = [tuple(map(int, found)) for found in re.findall(r"^\| `\w+` \| (\d+) of (\d+) \|", page, re.MULTILINE)]
    score = by_title(list(of_others(page)), "tool parsers")
    assert (score.kept, score.total) == tuple(map(sum, zip(*counts, strict=True)))


def test_published_rows_are_those_of_the_accounts_and_of_the_last_release() -> None:
    memory, left_out, *_ = of_neuron(releases()[-1])
    assert memory.total == sum(len(one.uses) for one in ACCOUNTS)
    for name, error in memory.failures:
        assert name.partition(": ")[0] in table()
        assert abs(float(error.strip("%"))) > 5
    accuracy = releases()[-1].left_out["all"]
    assert accuracy.within is not None
    assert (left_out.total, left_out.kept) == (accuracy.rows, round(accuracy.rows * accuracy.within.rows))


def test_the_page_has_every_share_and_is_refused_without_a_suite(tmp_path: Path) -> None:
    results, page = tmp_path / "results.xml", tmp_path / "fidelity.md"
    results.write_text(RESULTS)
    assert main(["--results", str(results), "--page", str(page)]) == 0
    text = page.read_text()
    assert all(f"| {path} |" in text for path in SUITES)
    assert "| 2 of 3 | 66.7% |" in text
    assert "| test_d | skipped no client |" in text
    results.write_text("<testsuites/>")
    assert main(["--results", str(results), "--page", str(page)]) == 1
