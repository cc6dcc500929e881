"""The command from the outside: files, exit codes, reports, and real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from neuronserve.loadtests import cli
from neuronserve.loadtests.errors import StartError
from neuronserve.loadtests.local_server import mock_command, running
from neuronserve.loadtests.records import read_records
from tests.api.serving import Server, running_server, write_checkpoint
from tests.api.telemetry.scraping import scrape

SHORT = "--random-input-len 8 --random-output-len 4 --num-warmups 1 --max-lag-ms 100000 --disable-progress"
SMALL = f"--num-prompts 12 {SHORT}"


@pytest.fixture(scope="module")
def mock_url() -> Iterator[str]:
    with running(mock_command(ttft_ms=10, itl_ms=2)) as url:
        yield url


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """neuronserve with a fake model and two engines."""
    flags = ("--price-basis", "reserved", "--data-parallel-size", "2")
    with running_server(write_checkpoint(tmp_path_factory.mktemp("model")), *flags) as running:
        yield running


def run(words: str, *more: str) -> int:
    return cli.main([*words.split(), *more])


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_writes_result_records_and_page(
    mock_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        f"--base-url {mock_url} {SMALL} --request-rate 100 --goodput ttft:5000 tpot:5000 --price-per-hour 1.5",
        *("--json", str(tmp_path / "r.json"), "--label", "<mine> & yours", "--metadata", "precision=int8"),
    )
    assert code == 0
    result = load(tmp_path / "r.json")
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (12, 0, 48)
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["cost_basis"].startswith("measured wall time at $1.5/h")
    assert result["cost_per_million_output_tokens_usd"] > result["cost_per_million_input_tokens_usd"] > 0
    assert result["benchmark_record"]["precision"] == "int8"
    assert result["benchmark_record"]["topology"] == "not stated"
    assert result["benchmark_record"]["server_version"] == "mock-1"
    records = list(read_records(tmp_path / "r.requests.jsonl"))
    assert sorted(record.phase for record in records) == ["measured"] * 12 + ["warmup"]
    page = (tmp_path / "r.html").read_text()
    assert "&lt;mine&gt; &amp; yours" in page
    assert "<mine>" not in page
    check_page(page)
    assert "12 of 12 requests completed" in capsys.readouterr().out


VLLM_NAMES = """
date backend model_id num_prompts request_rate burstiness max_concurrency duration completed failed
total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput
mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms
mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms p99_e2el_ms
"""


def test_the_result_has_the_names_of_vllm_bench_serve(mock_url: str, tmp_path: Path) -> None:
    assert run(f"--base-url {mock_url} {SMALL} --max-concurrency 2 --json {tmp_path}/r.json") == 0
    result = load(tmp_path / "r.json")
    assert not [name for name in VLLM_NAMES.split() if name not in result]
    assert (result["request_rate"], result["max_concurrency"], result["model_id"]) == ("inf", 2, "mock")
    assert result["cost_per_million_output_tokens_usd"] is None
    assert result["cost"]["modelled"]["reason"] == (
        "no instance was given, and the server has no /inventory that names one"
    )


def test_modelled_cost_says_that_the_server_gave_no_device_time(mock_url: str, tmp_path: Path) -> None:
    run(f"--base-url {mock_url} {SMALL} --instance inf2.xlarge --json {tmp_path}/r.json")
    account = load(tmp_path / "r.json")["cost"]["modelled"]
    assert account == {
        "available": False,
        "reason": "the server gave no device seconds for 12 of 12 completed requests",
    }


def test_a_late_generator_publishes_nothing(mock_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--base-url {mock_url} {SMALL} --request-rate 100 --json {tmp_path}/r.json".replace("100000", "0.0001")
    assert run(words) == 3
    assert not (tmp_path / "r.json").exists()
    assert not (tmp_path / "r.html").exists()
    rejected = load(tmp_path / "r.rejected.json")
    assert not rejected["is_publishable"]
    assert "the limit is 0.0001 ms (max_lag_ms)" in rejected["not_publishable_because"]
    assert len(list(read_records(tmp_path / "r.requests.jsonl"))) == 13
    assert "Not to be published" in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_with_a_late_generator_leaves_nothing_under_its_name(mock_url: str, tmp_path: Path) -> None:
    words = f"compare --base-url {mock_url} --other-base-url {mock_url} {SMALL} --request-rate 100 --rounds 2"
    assert run(f"{words} --json {tmp_path}/c.json".replace("100000", "0.0001")) == 3
    assert [path.name for path in tmp_path.glob("*.json")] == ["c.rejected.json"]


def test_a_run_in_which_everything_fails_is_reported_as_that(mock_url: str, tmp_path: Path) -> None:
    """The path does not exist, so that every request is a 404."""
    words = f"--base-url {mock_url} {SMALL} --endpoint /nowhere --goodput ttft:1 --price-per-hour 1"
    assert run(f"{words} --json {tmp_path}/r.json".replace("--num-warmups 1", "--num-warmups 0")) == 1
    result = load(tmp_path / "r.json")
    assert (result["completed"], result["errors_by_kind"]) == (0, {"http_4xx": 12})
    assert result["error_examples"] == {"http_4xx": "404: no such path"}
    assert result["cost_per_million_output_tokens_usd"] is None
    assert result["median_ttft_ms"] is None
    check_page((tmp_path / "r.html").read_text())


@pytest.mark.slow
def test_a_sweep_writes_every_point_and_the_curves(mock_url: str, tmp_path: Path) -> None:
    words = f"sweep --base-url {mock_url} {SHORT} --goodput ttft:10000 --price-per-hour 1 --json {tmp_path}/s.json"
    assert run(f"{words} --start-rate 40 --max-points 2 --point-duration-s 0.2 --min-prompts 8") == 0
    result = load(tmp_path / "s.json")
    assert [point["request_rate"] for point in result["points"]] == [40, 80]
    assert result["knee"]["request_rate"] == 80
    assert not result["is_bracketed"]
    assert len(list(tmp_path.glob("s.rate-*.requests.jsonl"))) == 2
    check_page((tmp_path / "s.html").read_text())


@pytest.mark.slow
def test_a_comparison_of_a_server_with_itself(mock_url: str, tmp_path: Path) -> None:
    words = f"compare --base-url {mock_url} --other-base-url {mock_url} {SMALL} --max-concurrency 4 --rounds 2"
    assert run(f"{words} --label-a left --label-b right --json {tmp_path}/c.json") == 0
    result = load(tmp_path / "c.json")
    assert (result["num_rounds"], result["labels"]) == (2, ["left", "right"])
    ratio = result["ratios"]["median_ttft_ms"]
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert len(list(tmp_path.glob("c.*.requests.jsonl"))) == 4
    check_page((tmp_path / "c.html").read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--base-url nowhere", "base_url is 'nowhere'"),
        ("--base-url http://127.0.0.1:1", "http://127.0.0.1:1 cannot be reached"),
        ("--scenario nope", "no scenario 'nope'"),
        ("--num-prompts 0", "num_prompts is 0: it must be at least 1"),
        ("sweep --base-url http://127.0.0.1:1", "a sweep needs limits"),
        ("compare --base-url http://127.0.0.1:1 --other-base-url http://127.0.0.1:1 --rounds 1", "rounds is 1"),
        ("--instance inf9.large", "no device 'inf9.large'"),
        ("--dataset-name jsonl --dataset-path /nowhere", "cannot read the trace /nowhere: No such file"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{words} --disable-progress --result-dir {tmp_path}") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_unknown_flag_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run("--num-promts 3")
    assert end.value.code == 2
    assert "--num-promts" in capsys.readouterr().err


def test_the_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("scenarios") == 0
    assert "mlperf-server    MLPerf" in capsys.readouterr().out


def test_sigint_ends_a_run_with_its_results_saved(mock_url: str, tmp_path: Path) -> None:
    """An interrupted long run: exit code 1, and the files have all completed requests."""
    words = f"--base-url {mock_url} --max-concurrency 2 --num-prompts 20000 --random-input-len 2 --random-output-len 2"
    more = f"--num-warmups 0 --max-lag-ms 1e9 --disable-progress --json {tmp_path}/r.json"
    process = subprocess.Popen([sys.executable, "-m", "neuronserve.loadtests", *words.split(), *more.split()])
    records = tmp_path / "r.requests.jsonl"
    deadline = time.monotonic() + 60
    while not (records.exists() and records.stat().st_size > 2000) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 1
    result = load(tmp_path / "r.json")
    assert result["is_interrupted"]
    assert result["completed"] == sum(record.is_ok for record in read_records(records)) > 5


def test_a_real_server_gives_exact_counts_in_both_apis(server: Server, tmp_path: Path) -> None:
    """Prompts and answers have exactly the length asked for, and their ids are checked."""
    words = f"--base-url {server.url} {SMALL} --max-concurrency 3 --return-token-ids"
    assert run(f"{words} --json {tmp_path}/text.json") == 0
    assert run(f"{words} --backend openai-chat --json {tmp_path}/chat.json") == 0
    words = words.replace("--num-prompts 12", "--num-prompts 6 --dataset-name multi-turn --num-turns 3")
    assert run(f"{words} --random-input-len 40 --json {tmp_path}/turns.json") == 0
    text, chat, turns = (load(tmp_path / f"{name}.json") for name in ("text", "chat", "turns"))
    assert (text["completed"], text["total_input_tokens"], text["total_output_tokens"]) == (12, 96, 48)
    assert text["benchmark_record"]["token_counts_from"] == ["usage"]
    assert (chat["completed"], chat["total_output_tokens"]) == (12, 48)
    # Each session sends 40, then 40 + 4 + 40, then 40 + 2 * 44 tokens, and the cache knows what was sent before.
    assert turns["total_input_tokens"] == 2 * (40 + 84 + 128)
    assert turns["total_cached_input_tokens"] > 0


NAMES = ("cost_per_million_output_tokens_usd", "cost_per_million_input_tokens_usd")


def test_cost_per_token_comes_from_a_neuronserve_server_by_itself(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without flags for instance and price, both accounts are at the server's price."""
    words, before = f"--base-url {server.url} {SMALL}", charged_usd(server)
    assert run(f"{words} --num-warmups 0 --json {tmp_path}/r.json") == 0
    usd = charged_usd(server) - before
    point = "--goodput ttft:60000 --start-rate 40 --max-points 1 --point-duration-s 0.2 --min-prompts 8"
    assert run(f"sweep --base-url {server.url} {SHORT} {point} --json {tmp_path}/s.json") == 0
    assert run(f"{words} --instance inf2.48xlarge --json {tmp_path}/other.json") == 0
    result = load(tmp_path / "r.json")
    wall, account = result["cost"]["measured"], result["cost"]["modelled"]
    assert [result[name] for name in NAMES] == [wall[name] for name in NAMES]
    assert [result[f"modelled_{name}"] for name in NAMES] == [account[name] for name in NAMES]
    assert all(result[name] > 0 for name in NAMES)
    assert wall["usd"] == pytest.approx(0.328 * result["duration"] / 3600)
    assert account["usd"] == pytest.approx(usd, rel=1e-6)
    record = result["benchmark_record"]
    assert (record["instance"], record["price_basis"]) == ("inf2.xlarge", "reserved")
    assert "by the server's inventory of 2024-09-16" in record["price_source"]
    assert load(tmp_path / "s.json")["knee"]["cost_per_million_output_tokens_usd"] > 0
    assert load(tmp_path / "other.json")["cost"]["modelled"]["price_basis"] == "on_demand"
    assert "cost per 1M tokens, modelled: input $" in capsys.readouterr().out


def charged_usd(server: Server) -> float:
    """Dollars that the server has charged all requests so far."""
    seen = scrape(server.url)
    return sum(
        seen.value("neuronserve:cost_usd_total", kind=kind, engine=engine)
        for kind in ("prefill", "decode")
        for engine in ("0", "1")
    )


@pytest.mark.slow
def test_the_default_model_is_priced_without_a_flag(
    tmp_path: Path, kernel_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONSERVE_KERNEL_CACHE_DIR", kernel_cache)
    assert run(f"--serve=--port=0 {SMALL} --json {tmp_path}/r.json") == 0
    result = load(tmp_path / "r.json")
    assert all(result[name] > 0 for name in NAMES)
    basis = "measured wall time at the price of 1 x inf2.xlarge, on_demand $0.7582/h by the server's inventory"
    assert result["cost_basis"].startswith(basis)


def test_a_server_that_does_not_start_is_an_error_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model: x')"]
    with pytest.raises(StartError, match="ended with code 1:\nno such model: x"), running(command):
        pass
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(StartError, match=r"not ready in 0\.2 s"), running(silent, timeout_s=0.2):
        pass


class _Page(HTMLParser):
    """Collects the resources that a page would load, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.num_charts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_charts += tag == "svg"
        self.loads += [f"{tag} {value}" for name, value in attrs if name in {"src", "href", "srcset"}]
        self.loads += [tag] if tag in {"script", "link", "iframe", "object"} else []
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [tag for name, _ in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str) -> None:
    """Assert that a page is self-contained and well formed, and shows no missing figure."""
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert "@import" not in text
    assert "url(" not in text
    assert "nan" not in text.replace("nance", "")
    assert "None" not in text
