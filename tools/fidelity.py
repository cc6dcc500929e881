"""How much of OpenAI's API, of vLLM's cases and of Neuron's published rows is kept: `make fidelity` writes the page.

It runs the suites below, unless it is given their results, and counts: shares, and failures by name.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses

from neuronserve.planner.validate.document import Section, Table
from neuronserve.planner.validate.markdown import markdown
from neuronserve.planner.validate.releases import ALL, Release, releases
from neuronserve.server import __version__
from neuronserve.server.api.wire.chat import ChatRequest
from neuronserve.server.api.wire.completions import CompletionRequest
from neuronserve.server.api.wire.pooling import EmbeddingRequest
from neuronserve.server.api.wire.responses import ResponsesRequest
from tools.memory_accounts import ACCOUNTS, rows

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/http-api.md"
OPENAI, VLLM = f"openai {version('openai')}", "copied 2026-11-24; no release is recorded"
SUITES = {  # file of tests: what it shows, and the version of what it holds the server to
    "tests/api/test_openai_shapes.py": ("Tests of answers and streams, by OpenAI's types", OPENAI),
    "tests/api/test_openai_client.py": ("Tests by OpenAI's client", OPENAI),
    "tests/api/test_endpoint_table.py": ("Tests of the table of endpoints", __version__),
    "tests/text/parsers/test_vllm_cases.py": ("Tests of vLLM's cases, also of those that differ on purpose", VLLM),
}
BODIES: dict[str, tuple[Any, Any]] = {  # path: OpenAI's parameters, and the body that is read here
    "/v1/chat/completions": (chats.CompletionCreateParamsBase, ChatRequest),
    "/v1/completions": (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
    "/v1/embeddings": (embedding_create_params.EmbeddingCreateParams, EmbeddingRequest),
    "/v1/responses": (responses.ResponseCreateParamsBase, ResponsesRequest),
}
NOT_KEPT = ("failure", "error", "skipped")  # tags of pytest
TOLERANCE, PROMISED = 0.05, 0.8  # relative error; share of rows that a band should hold
NOT_KEPT = ("failure", "error", "skipped")
Cases = list[tuple[str, str]]  # name, and the reason why it is not kept, or ""
BY_HAND = (
    ("vLLM's tests of its HTTP server", "never", "no suite here runs them"),
    ("The chart on an API server of Kubernetes 1.36.2", "2026-11-24", "docs/guides/deploy.md"),
)


@dataclass(frozen=True, slots=True)
class Score:
    """Cases of a suite that are kept, of `total`, and others by name and reason."""

    title: str
    suite: str
    version: str
    kept: int
    total: int
    failures: Cases

    @classmethod
    def of(cls, title: str, suite: str, held_to: str, cases: Cases) -> Score:
        """Return the score of cases by name; those with a reason are not kept."""
        failures = [(name, " ".join(why.replace("|", "/").split())) for name, why in cases if why]
        return cls(title, suite, held_to, len(cases) - len(failures), len(cases), failures)


def of_tests(results: str) -> Iterator[Score]:
    """Yield a score for each suite in pytest's JUnit XML. A skipped test is not kept."""
    found = list(ElementTree.fromstring(results).iter("testcase"))
    for path, (title, held_to) in SUITES.items():
        module = path.removesuffix(".py").replace("/", ".")
        own = [case for case in found if f"{case.get('classname')}.".startswith(f"{module}.")]
        ends = [[f"{part.tag} {part.get('message')}" for part in case if part.tag in NOT_KEPT] for case in own]
        cases = [(str(case.get("name")), "; ".join(end)[:200]) for case, end in zip(own, ends, strict=True)]
        yield Score.of(title, path, held_to, cases)


def of_others(page: str) -> Iterator[Score]:
    """Yield how much of OpenAI's parameters, of the endpoints of a page, and of vLLM's cases of parsers is kept."""
    wanted = [(path, name, ours) for path, (theirs, ours) in BODIES.items() for name in sorted(theirs.__annotations__)]
    cases = [(f"{path} {name}", "" if name in ours.model_fields else "not read") for path, name, ours in wanted]
    yield Score.of("Parameters of OpenAI's requests", "tools/fidelity.py", OPENAI, cases)
    table = [line.strip("| ").split(" | ") for line in re.findall(r"^\| `[A-Z]+ /.*$", page, re.MULTILINE)]
    for column, name in ((1, "OpenAI"), (2, "vLLM")):
        of = [cells for cells in table if len(cells) == 4 and not cells[column].startswith("no")]
        found = [(endpoint, cells[3]) for cells in of for endpoint in re.findall(r"`([^`]+)`", cells[0])]
        cases = [(endpoint, here if here.startswith("no") else "") for endpoint, here in found]
        yield Score.of(f"Endpoints of {name} that the page compares", PAGE, __version__, cases)
    modules = [importlib.import_module(f"tests.text.parsers.{name}") for name in ("vllm_cases", "vllm_marked_cases")]
    cases = [(f"{case.parser}: {case.name}", case.why) for module in modules for case in module.CASES]
    yield Score.of("vLLM's cases of tool parsers, read alike", "tests/text/parsers/vllm_cases.py", VLLM, cases)


def of_neuron(release: Release) -> Iterator[Score]:
    """Yield how many published figures are met: memory of a core, and times by a release's accuracy."""
    errors = [(f"{one.name}: {use}", here / there - 1) for one in ACCOUNTS for use, there, here in rows(one)]
    cases = [(name, f"{error:+.1%}" if abs(error) > TOLERANCE else "") for name, error in errors]
    title = f"Published memory of a core, within {TOLERANCE:.0%}"
    yield Score.of(title, "tools/memory_accounts.py", __version__, cases)
    groups = {name: each for name, each in release.left_out.items() if name.count(",") == 2}  # phase, kind, chip
    shares = [(name, each.within.rows, each.rows) for name, each in groups.items() if each.within]
    narrow = [(name, f"{held:.0%} of {of} rows") for name, held, of in shares if held < PROMISED]
    for what, found in (("left out of the fit", release.left_out[ALL]), ("unseen", release.totals[ALL].unseen)):
        if found is not None and found.within is not None:
            suite = f"calibration {release.calibration}, table {release.table_sha256[:12]}"
            title, held = f"Published times within their band, series {what}", round(found.within.rows * found.rows)
            yield Score(title, suite, release.name, held, found.rows, [] if what == "unseen" else narrow)


def sections(scores: Sequence[Score]) -> list[Section]:
    """Return the page: shares, failures by name, and what no command computes."""
    cells = [(s.title, f"{s.kept} of {s.total}", f"{s.kept / max(s.total, 1):.1%}", s.suite, s.version) for s in scores]
    return [
        Section("Shares", table=Table(("what", "kept", "share", "suite", "version"), tuple(cells))),
        *(Section(s.title, table=Table(("not kept", "reason"), tuple(s.failures))) for s in scores if s.failures),
        Section("By hand", table=Table(("what", "date", "where"), BY_HAND)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page. Returns 1 if a suite did not run."""
    parser = argparse.ArgumentParser(prog="python -m tools.fidelity", description=__doc__)
    parser.add_argument("--results", type=Path, help="JUnit XML of pytest (default: run the suites)")
    parser.add_argument("--page", type=Path, default=ROOT / "dist" / "fidelity.md")
    given = parser.parse_args(argv)
    given.page.parent.mkdir(parents=True, exist_ok=True)
    results = given.results or given.page.with_suffix(".xml")
    if given.results is None:
        subprocess.run([sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", *SUITES], cwd=ROOT, check=False)
    scores = [*of_tests(results.read_text()), *of_others((ROOT / PAGE).read_text()), *of_neuron(releases()[-1])]
    given.page.write_text(markdown(f"Fidelity of neuronserve {__version__}", sections(scores)), encoding="utf-8")
    print(given.page)
    return int(not all(score.total for score in scores))


if __name__ == "__main__":
    sys.exit(main())
