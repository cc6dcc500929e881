"""Small modules: vocabulary, alarm, lag, progress, records and files."""

from __future__ import annotations

import ast
import asyncio
import io
import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from neuronserve.loadtests.alarm import Alarm
from neuronserve.loadtests.artifacts import Artifacts, write_text
from neuronserve.loadtests.errors import DatasetError, SpecError
from neuronserve.loadtests.http_client import split_url
from neuronserve.loadtests.lag import LagMeter, LagReport
from neuronserve.loadtests.progress import Progress, show
from neuronserve.loadtests.rate import HourRate
from neuronserve.loadtests.records import RecordFile, RequestRecord, read_records
from neuronserve.loadtests.specs import PriceSpec
from neuronserve.loadtests.vocabulary import TokenizerVocabulary, Vocabulary
from tools.random_checkpoint.tokenizer import special_token_ids, tokenizer_json

LOADTESTS = Path(__file__).resolve().parents[2] / "loadtests"
FILES = sorted(LOADTESTS.rglob("*.py"))


def record(number: int = 0, **changes: object) -> RequestRecord:
    fields: dict[str, object] = {"request_id": f"r{number}", "session": 0, "turn": 0, "intended_s": 0.0, "sent_s": 0.0}
    fields |= {"end_s": 1.0, "ttft_s": 0.25, "prompt_tokens": 10, "output_tokens": 4}
    return RequestRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_words_of_the_vocabulary_differ_and_keep_prefixes() -> None:
    vocabulary = Vocabulary()
    ids = list(range(vocabulary.first, vocabulary.end))
    assert len(set(vocabulary.text(ids).split())) == len(ids)
    assert vocabulary.text(ids).startswith(vocabulary.text(ids[:9]))
    with pytest.raises(SpecError, match="token ids from 5 to 5"):
        Vocabulary(5, 5)


WORDS = ["".join(letters) for letters in itertools.product("aeiou", "bcdfgkl", "mnprst")]  # 210 of three letters


def write_word_tokenizer(path: Path) -> None:
    """A byte-level tokenizer with each of WORDS as one token with its space, built of merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    halves = sorted({"Ġ" + word[0] for word in WORDS} | {word[1:] for word in WORDS})
    merges = [(half[0], half[1]) for half in halves] + [("Ġ" + word[0], word[1:]) for word in WORDS]
    tokens = [*alphabet, *halves, *("Ġ" + word for word in WORDS)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(path))


def test_text_of_a_model_s_own_words_encodes_to_the_very_ids(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path / "tokenizer.json")
    vocabulary = TokenizerVocabulary(tmp_path)
    drawn = vocabulary.draw(np.random.default_rng(0), 3000)
    assert len(set(drawn)) == len(WORDS)
    text = vocabulary.text(drawn)
    assert tuple(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids) == drawn


def test_a_vocabulary_of_few_words_gives_letters_and_no_special_token(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(400)))
    vocabulary = TokenizerVocabulary(tmp_path / "tokenizer.json")
    drawn = vocabulary.draw(np.random.default_rng(0), 5000)
    assert not set(drawn) & set(special_token_ids(400).values())
    assert len(set(drawn)) > 100
    assert vocabulary.text(drawn).isascii()


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tokenizer\.json' cannot be read"):
        TokenizerVocabulary(tmp_path)


async def test_the_alarm_never_rings_early_and_passes_what_is_past() -> None:
    alarm = Alarm()
    try:
        deadline = time.monotonic() + 0.02
        await alarm.wait_until(deadline)
        assert time.monotonic() >= deadline
        await asyncio.wait_for(alarm.wait_until(deadline - 5), 5)
    finally:
        alarm.close()


async def test_the_lag_meter_sees_a_blocked_event_loop() -> None:
    meter = LagMeter()
    meter.start()
    beating = asyncio.create_task(meter.beat())
    await asyncio.sleep(0.12)
    time.sleep(0.2)
    await asyncio.sleep(0.1)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    meter.note_send(0.003)
    report = meter.report()
    assert report.loop_lag_max_ms >= 120
    assert report.send_lag_max_ms == pytest.approx(3)
    assert report.cpu_percent_of_one_core >= 0


@pytest.mark.parametrize(("send", "loop", "word"), [(11.0, 0, "sending"), (0, 12.0, "event loop"), (9.0, 9.0, None)])
def test_lag_above_the_limit_is_a_complaint_with_both_figures(send: float, loop: float, word: str | None) -> None:
    complaint = LagReport(0, send, send, 0, loop, loop, 5.0, 40.0).complaint(10.0)
    if word is None:
        assert complaint is None
        return
    assert complaint is not None
    assert word in complaint
    assert f"{max(send, loop):.2f} ms, the limit is 10 ms (max_lag_ms); it waited for a core 40 %" in complaint


def test_the_live_line_shows_percentiles_failures_and_cost() -> None:
    progress = Progress("chat", 10, PriceSpec(price_per_hour=36.0))
    assert "waiting" in progress.text()
    progress.note(record(phase="warmup"))
    assert "waiting" in progress.text()
    for number in range(4):
        progress.note(record(number))
    progress.note(record(5, failure="timeout"))
    text = progress.text()
    assert text.startswith("chat: 5/10, 1 failed, 1 s")
    assert "TTFT p50 250.0 p99 250.0 ms, TPOT p50 250.0 p99 250.0 ms, $" in text


def test_the_live_cost_is_of_wall_time_by_the_servers_own_price_once_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuronserve.loadtests.progress.time", SimpleNamespace(monotonic=lambda: 100.0))
    progress = Progress("x", 1, PriceSpec(output_price_ratio=1.0))
    progress.note(record(device_seconds=3.6))
    assert "/1M out" not in progress.text()
    progress.use_rate(HourRate("inf2.xlarge", "given", 0.7582, "", 0.5, None))
    assert "$15/1M out" in progress.text()  # $0.7582 / h for one second over 14 tokens


async def test_progress_writes_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuronserve.loadtests.progress.PLAIN_PERIOD_S", 0.01)
    stream = io.StringIO()
    shown = asyncio.create_task(show(Progress("x", 1, PriceSpec()), stream))
    while stream.getvalue().count("\n") < 2:
        await asyncio.sleep(0.005)
    shown.cancel()
    await asyncio.gather(shown, return_exceptions=True)
    assert "\r" not in stream.getvalue()


def test_records_are_on_disk_at_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.jsonl"
    file = RecordFile(path)
    given = [record(0, itls_s=[0.1]), record(1, failure="connect", error="refused", ttft_s=None)]
    for one in given:
        file.add(one)
    assert list(read_records(path)) == given  # before it is closed
    file.close()


def test_a_half_written_last_record_is_skipped_and_another_bad_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = RecordFile(path)
    file.add(record())
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert len(list(read_records(path))) == 1
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(DatasetError, match="line 1 is not a request record"):
        list(read_records(path))


def test_a_rejected_result_never_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    artifacts = Artifacts.named(str(tmp_path), "a run/with:marks", str(tmp_path / "r.json"))
    assert artifacts.save_result({"x": 1}, is_publishable=False) == tmp_path / "r.rejected.json"
    assert not (tmp_path / "r.json").exists()
    assert json.loads(artifacts.save_result({"x": 1}).read_text()) == {"x": 1}
    artifacts.save_partial({"half": 1})
    assert json.loads((tmp_path / "r.partial.json").read_text()) == {"half": 1}
    artifacts.save_result({"x": 1}, is_publishable=False)
    assert not (tmp_path / "r.partial.json").exists()
    assert artifacts.records == tmp_path / "r.requests.jsonl"
    assert artifacts.page == tmp_path / "r.html"
    assert Artifacts.named(str(tmp_path), "a run/with:marks").result.name.startswith("a-run-with-marks-2")


def test_files_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot write"):
        write_text(tmp_path / "file" / "x.json", "")
    with pytest.raises(DatasetError, match="cannot write the records"):
        RecordFile(tmp_path / "file" / "x.jsonl")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a:0", "http://a:99999", ""])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="it must look like http://HOST:PORT"):
        split_url(url)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_limits_of_taste_and_what_may_be_imported(path: Path) -> None:
    """Load tests use the server only over HTTP; they share its records of workloads and prices."""
    text = path.read_text()
    assert text.count("\n") <= 300
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    shared = ("server.device.prices", "server.device.buckets", "server.errors", "server.clock")
    only_there = {"rate": ("server.device.catalog", "server.config")}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 50
            assert len(node.args.args + node.args.kwonlyargs) - (node.args.args[:1] != []) <= 6
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "server":
            assert (node.module or "").startswith((*shared, *only_there.get(path.stem, ()))), f"{path}:{node.lineno}"
