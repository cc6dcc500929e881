"""Each example against a live server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronserve.testing import Server, running_server
from tests.api.serving import PATIENCE_S, ROOT, environment

EXAMPLES = ROOT / "examples"
TRIED = {"rag", "tool_agent", "json_extraction", "batch_job", "cost_gate"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kernel_cache: str) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        data = str(tmp_path_factory.mktemp("data"))
        with running_server(args=["--data-dir", data, "--kernel-cache-dir", kernel_cache]) as running:
            yield running


def run(server: Server, name: str, *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(EXAMPLES / f"{name}.py"), *args]
    env = environment(**server.env)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False)


def printed(server: Server, name: str, *args: str) -> str:
    ran = run(server, name, *args)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.thorough
def test_retrieval_finds_the_passage_and_the_model_writes_from_it(server: Server) -> None:
    passage, answer = printed(server, "rag", "Which pilot lost a hammer?").splitlines()
    assert passage.startswith("passage: Marek is a pilot.")
    assert "hammer" in answer


@pytest.mark.thorough
def test_the_agent_calls_and_answers_with_what_it_was_told(server: Server) -> None:
    ran = run(server, "tool_agent", "What is the weather in Oslo?")
    assert ran.returncode == 0, ran.stderr
    assert 'get_weather({"city": "Oslo"})' in ran.stderr
    assert "17" in ran.stdout


@pytest.mark.thorough
def test_sentences_become_records(server: Server) -> None:
    people = [json.loads(line) for line in printed(server, "json_extraction").splitlines()]
    assert people[0] == {"name": "Marek", "age": 42, "city": "Prague"}
    assert [set(person) for person in people] == [{"name", "age", "city"}] * 2


@pytest.mark.thorough
def test_a_batch_is_answered_line_by_line(server: Server) -> None:
    lines = printed(server, "batch_job", "7+5", "12+30").splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["12+30", "7+5"]
    assert any("12" in line.partition(":")[2] for line in lines)


@pytest.mark.thorough
def test_ci_fails_when_a_token_costs_a_tenth_more(server: Server, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    printed(server, "cost_gate", str(baseline), "--update", "--max-tokens", "16")
    assert "to the baseline's $" in printed(server, "cost_gate", str(baseline), "--max-tokens", "16")
    assert run(server, "cost_gate", str(baseline), "--max-tokens", "2").returncode == 1  # prompts over fewer tokens
    before = json.loads(baseline.read_text())
    before["usd_per_million_output_tokens"] *= 0.8
    baseline.write_text(json.dumps(before))
    assert run(server, "cost_gate", str(baseline), "--max-tokens", "16").returncode == 1


def test_every_example_is_tried_and_says_how_to_run_it() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TRIED
    for path in EXAMPLES.glob("*.py"):
        assert f"python examples/{path.name}" in path.read_text().split('"""')[1]
