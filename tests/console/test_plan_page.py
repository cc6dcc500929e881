"""The planner over HTTP: the same figures as the command's, part by part, and the files that it emits."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.planner.emit.folder import Emission, emit
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.search import plan
from tests.api.serving import Server, command, environment, read_until

MODEL = "llama-3.1-8b"
BODY = {"model": MODEL, "device": ["inf2.24xlarge"], "ttft_ms": 500, "request_rate": 2}


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """`neuronserve plan --serve`."""
    argv = command("plan", MODEL, "--serve", "--port", "0", program="neuronserve")
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, env=environment())
    try:
        yield read_until(process, rb"planner: (http://\S+)").rpartition(" ")[2].strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def ask(url: str, **body: Any) -> list[dict[str, Any]]:
    answer = httpx.post(f"{url}/console/plan", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_rows_are_those_of_the_command(alone: str) -> None:
    (part,) = ask(alone, **BODY)
    report = plan(PlanOptions(MODEL, request_rate=2, ttft_s=0.5, devices=("inf2.24xlarge",), dtypes=("bfloat16",)))
    assert [(row["tp"], row["batch"], row["instances"]) for row in part["rows"]] == [
        (row.tp, row.batch, row.instances) for row in report.candidates
    ]
    first, best = part["rows"][0], report.candidates[0]
    price = best.at_rate["on_demand"]
    assert price is not None
    assert (first["usd"], first["ttft_ms"]) == (price.total_usd, best.ttft_s * 1e3)
    assert first["bands"]["tpot_s"] == dict(zip(("p10", "p90"), best.known.tpot_s, strict=True))


def test_a_part_advises_the_bucket_that_its_prompts_lack(alone: str) -> None:
    for length, is_advised in ((1024, True), (900, False)):
        (part,) = ask(alone, **BODY, input_len=length)
        assert any("prompts of 1,024 tokens need the bucket of 2,048" in note for note in part["notes"]) == is_advised


def test_parts_come_in_the_order_asked_for(alone: str) -> None:
    devices = ["inf2.24xlarge", "inf1.xlarge"]
    parts = ask(alone, **BODY | {"device": devices})
    assert [part["device"] for part in parts] == devices
    assert parts[1]["rows"] == []
    assert "GiB" in parts[1]["why_none"]


def test_the_archive_is_what_emit_writes(alone: str, tmp_path: Path) -> None:
    (part,) = ask(alone, **BODY)
    row = {name: part["rows"][0][name] for name in ("device", "tp", "pp", "dtype", "batch")}
    answer = httpx.post(f"{alone}/console/plan/files", json={**BODY, "row": row})
    assert answer.status_code == 200
    report = plan(PlanOptions(MODEL, request_rate=2, ttft_s=0.5, devices=("inf2.24xlarge",), dtypes=("bfloat16",)))
    paths = emit(report, Emission(tmp_path))
    with zipfile.ZipFile(io.BytesIO(answer.content)) as folder:
        assert {name: folder.read(name).decode() for name in folder.namelist()} == {
            str(path.relative_to(tmp_path)): path.read_text() for path in paths
        }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "no-such-model"}, None),
        ({"model": "/etc"}, None),
        ({"input_len": 0}, "input_len"),
        ({"request_rate": "fast"}, "request_rate"),
        ({"device": ["p5.48xlarge"]}, None),
        ({"colour": "red"}, "colour"),
        ({"uses_traffic": True}, "uses_traffic"),
    ],
)
def test_what_cannot_be_planned_is_refused(alone: str, body: dict[str, Any], param: str | None) -> None:
    answer = httpx.post(f"{alone}/console/plan", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_server_plans_for_the_traffic_it_has_seen(echo: Server, alone: str) -> None:
    for text in ("a" * 30, "b" * 60, "c" * 90):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 200}
        assert httpx.post(f"{echo.url}/v1/chat/completions", json=body).status_code == 200
    (part,) = ask(echo.url, model=MODEL, device=["inf2.xlarge"], uses_traffic=True)
    demand = part["demand"]
    assert demand["requests"] >= 3
    assert demand["output_tokens"] >= 5
    assert part["rows"][0]["usd"] > 0
    choices = httpx.get(f"{alone}/console/choices").json()
    assert choices["default_model"] == MODEL
    assert {"name": "inf2.xlarge", "chip": "Inferentia2", "cores": 2} in choices["devices"]


def test_the_page_alone_has_no_engine(alone: str) -> None:
    assert "planner-alone.js" in httpx.get(alone).text
    assert httpx.get(f"{alone}/console/events").status_code == 404
    assert httpx.get(f"{alone}/v1/models").status_code == 404
