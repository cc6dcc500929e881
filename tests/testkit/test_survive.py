"""`neuronserve survive` with clients that survive, fail, hang or give a wrong output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neuronserve.testkit.faults.rule_file import read_rules
from neuronserve.testkit.survival.survive import Run, judged
from neuronserve.testkit.survival.trials import TRIALS, rules
from tests.api.serving import PATIENCE_S, environment, run_command

# A client of nothing but the standard library. CAREFUL: tries again until a stream is whole.
CLIENT = """
import http.client, json, os, sys, time, urllib.request

def answer():
    question = [{"role": "user", "content": "Hello!"}]
    body = {"model": "default", "messages": question, "max_tokens": 64, "temperature": 0, "stream": True}
    body["ignore_eos"] = True  # long enough that a busy host does not send all of it as one event
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    text, done = "", False
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as stream:
        for line in stream:
            if line.strip() == b"data: [DONE]":
                done = True
            elif line.startswith(b"data: "):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    if CAREFUL and not done:
        raise ValueError("cut")
    return text

for attempt in range(3):
    try:
        print(answer())
        break
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        if not CAREFUL or attempt == 2:
            raise
        time.sleep(0.01)
"""
TIMEOUT_S = 10 * PATIENCE_S


def survive(tmp_path: Path, kernel_cache: str, client: str, *flags: str) -> tuple[int, dict[str, str], str]:
    """Return exit code, verdicts by trial, and the output."""
    script, report = tmp_path / "client.py", tmp_path / "report.json"
    script.write_text(client)
    argv = [
        sys.executable,
        "-m",
        "neuronserve",
        "survive",
        "--json",
        str(report),
        *flags,
        "--",
        sys.executable,
        str(script),
    ]
    env = environment(NEURONSERVE_KERNEL_CACHE_DIR=kernel_cache)
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    found = json.loads(report.read_text()) if report.exists() else []
    return ran.returncode, {each["trial"]: each["verdict"] for each in found}, ran.stdout + ran.stderr


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


@pytest.mark.thorough
def test_a_careful_client_survives_and_is_equal(tmp_path: Path, kernel_cache: str) -> None:
    names = ("rate-limit", "reset", "cut-end", "cut-close", "malformed-chunk", "error-event", "outage")
    code, verdicts, said = survive(tmp_path, kernel_cache, f"CAREFUL = True\n{CLIENT}", *only(*names))
    assert verdicts == dict.fromkeys(names, "survived"), said
    assert code == 0


def test_a_careless_client_gets_the_trials_that_it_did_not_survive(tmp_path: Path, kernel_cache: str) -> None:
    names = ("server-error", "cut-end", "truncated-json")
    code, verdicts, said = survive(tmp_path, kernel_cache, f"CAREFUL = False\n{CLIENT}", *only(*names))
    assert verdicts == {"server-error": "failed", "truncated-json": "not met", "cut-end": "wrong output"}, said
    assert code == 1
    assert "HTTP Error 500" in said


@pytest.mark.thorough
def test_a_client_that_does_not_end_is_ended(tmp_path: Path, kernel_cache: str) -> None:
    hangs = "CAREFUL = False\n" + CLIENT.replace("    raise\n", "    time.sleep(3600)\n")
    code, verdicts, said = survive(tmp_path, kernel_cache, hangs, *only("server-error"), "--timeout", "20")
    assert (code, verdicts) == (1, {"server-error": "hung"}), said


@pytest.mark.thorough
def test_a_command_that_fails_by_itself_is_no_trial(tmp_path: Path, kernel_cache: str) -> None:
    code, verdicts, said = survive(tmp_path, kernel_cache, "raise SystemExit('no such thing')", *only("reset"))
    assert (code, verdicts) == (2, {})
    assert "the command ends with code 1 without any fault:\nno such thing" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "there is no command"),
        (("--only", "rate_limit", "--", "x"), "known are rate-limit"),
        (("--timeuot", "1"), "did you mean --timeout"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(flags: tuple[str, ...], words: str) -> None:
    ran = run_command("survive", *flags)
    assert ran.returncode == 2
    assert words in ran.stderr


def test_verdicts() -> None:
    trial, outage = TRIALS[0], TRIALS[-1]
    hung, failed, ended = (Run(code, 1.0, b"", "") for code in (None, 1, 0))
    assert [judged(trial, 1, run, True) for run in (hung, failed, ended)] == ["hung", "failed", "survived"]
    assert [judged(outage, 3, run, True) for run in (hung, failed, ended)] == ["hung", "survived", "survived"]
    assert judged(trial, 1, ended, None) == "survived"
    assert judged(trial, 1, ended, False) == "wrong output"
    assert judged(trial, 0, ended, True) == "not met"


def test_every_trial_is_a_rule_of_its_own_key(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(rules(TRIALS))
    read = read_rules(file).rules
    assert [rule.name for rule in read] == [trial.name for trial in TRIALS]
    for trial in TRIALS:
        headers = {"authorization": f"Bearer {trial.api_key}"}
        taken = [rule.name for rule in read if rule.match.accepts("/v1/chat/completions", headers, {"model": "m"})]
        assert taken == [trial.name]
        assert not [rule for rule in read if rule.match.accepts("/v1/models", headers, {})]
