"""Injected faults over sockets: in place of an answer, in the middle of one, as delays, and by header."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.errors import InvalidRequest, SettingsError
from neuronserve.testkit.faults.rule_file import header_rule, read_rules
from neuronserve.testkit.faults.rules import KINDS, FaultConfig, Injections, Latency, Rule, ServerError
from neuronserve.testkit.faults.sse import EventSplitter, has_output
from tests.api.serving import ROOT, Server, run_command, running_server
from tests.api.telemetry.scraping import scrape

RULES = """
seed: 7
rules:
  - {fault: rate_limit, retry_after: 3, times: 1, match: {user: limited}, name: once}
  - {fault: unavailable, every: 2, match: {model: "fa*", user: every-other}}
  - {fault: server_error, status: 502, match: {header: {X-Team: "blue*"}}}
  - {fault: cut, after_tokens: 3, how: end, match: {user: cut}}
"""
CHAT = "/v1/chat/completions"
TOKENS = 32


@pytest.fixture(scope="module")
def faulty(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with rules that also accepts the header."""
    file = tmp_path_factory.mktemp("faults") / "rules.yaml"
    file.write_text(RULES)
    with running_server(
        checkpoint, "--device", "slow:0.002", "--inject-faults", str(file), "--allow-fault-header"
    ) as running:
        yield running


def body(**more: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "abc"}]
    return {"model": "fake", "messages": question, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, **more}


def post(server: Server, fault: str | None = None, team: str = "none", **more: Any) -> httpx.Response:
    wish = {} if fault is None else {"X-Inject-Fault": fault}
    return httpx.post(server.url + CHAT, json=body(**more), headers={**wish, "x-team": team})


def raw(server: Server, fault: str, **more: Any) -> tuple[bytes, bool]:
    """Return all bytes of an answer, and whether the connection was reset after them."""
    content = json.dumps(body(**more)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Inject-Fault: {fault}\r\n"
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
        try:
            while data := client.recv(65536):
                got += data
        except ConnectionResetError:
            return got, True
    return got, False


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def written(text: str) -> str:
    """The text of a stream."""
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events(text) if event != "[DONE]"]
    return "".join(delta.get("content") or "" for delta in deltas)


def num_tokens(text: str) -> int:
    return sum(has_output(f"data: {event}\n\n".encode()) for event in events(text))


def test_a_limit_once_and_then_an_answer(faulty: Server) -> None:
    with openai.OpenAI(base_url=f"{faulty.url}/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**body_of_openai(user="limited"))
        assert refused.value.response.headers["retry-after"] == "3"
        assert refused.value.code == "injected_fault"
        assert client.chat.completions.create(**body_of_openai(user="limited")).choices[0].message.content


def body_of_openai(**more: Any) -> dict[str, Any]:
    return {name: value for name, value in body(**more).items() if name != "ignore_eos"}


def test_every_second_request_that_matches_and_no_other(faulty: Server) -> None:
    statuses = [(post(faulty, user="every-other").status_code, post(faulty).status_code) for _ in range(4)]
    assert statuses == [(200, 200), (503, 200)] * 2
    assert post(faulty, team="blue-1").status_code == 502
    assert post(faulty, team="red").status_code == 200


def test_a_stream_ends_after_the_tokens_of_the_rule_without_its_last_events(faulty: Server) -> None:
    answer = post(faulty, user="cut", stream=True)
    assert (answer.status_code, answer.headers["x-injected-fault"], num_tokens(answer.text)) == (200, "cut", 3)
    assert "[DONE]" not in answer.text
    assert 'finish_reason": "' not in answer.text
    assert post(faulty, user="cut").status_code == 200  # a whole answer has no middle


@pytest.mark.parametrize("after", [0, 2, 100])
def test_a_connection_closes_in_the_middle_of_a_stream(faulty: Server, after: int) -> None:
    got, is_reset = raw(faulty, f"cut; after_tokens={after}", stream=True)
    assert not is_reset
    if after < TOKENS:
        assert num_tokens(got.decode()) == after
    else:
        assert written(got.decode()) == written(post(faulty, stream=True).text)  # behind its last token
    assert b"[DONE]" not in got
    assert not got.endswith(b"0\r\n\r\n")
    with pytest.raises(httpx.RemoteProtocolError):
        post(faulty, f"cut; after_tokens={after}", stream=True)


def test_a_connection_is_reset_in_place_of_an_answer_and_in_the_middle(faulty: Server) -> None:
    assert raw(faulty, "reset") == (b"", True)
    assert raw(faulty, "cut; how=reset", stream=True)[1]
    assert post(faulty).status_code == 200


def test_a_broken_event_stands_between_good_ones(faulty: Server) -> None:
    found = events(post(faulty, "malformed_chunk; after_tokens=2", stream=True).text)
    broken = [place for place, event in enumerate(found) if event != "[DONE]" and not is_json(event)]
    assert len(broken) == 1
    assert num_tokens("\n".join(f"data: {event}" for event in found[: broken[0]])) == 2
    assert found[-1] == "[DONE]"
    others = "\n".join(f"data: {event}" for event in found if event != found[broken[0]])
    assert written(others) == written(post(faulty, stream=True).text)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_an_error_ends_a_stream_in_the_form_of_each_dialect(faulty: Server) -> None:
    wish = {"X-Inject-Fault": "error_event; after_tokens=2"}
    with (
        openai.OpenAI(base_url=f"{faulty.url}/v1", api_key="any", max_retries=0, default_headers=wish) as client,
        pytest.raises(openai.APIError, match="on purpose"),
    ):
        list(client.chat.completions.create(**body_of_openai(stream=True)))
    with openai.OpenAI(base_url=f"{faulty.url}/v1", api_key="any", max_retries=0, default_headers=wish) as client:
        *_, last = client.responses.create(model="fake", input="abc", max_output_tokens=TOKENS, stream=True)
    assert (last.type, getattr(last, "code", None)) == ("error", "injected_fault")
    question: Any = [{"role": "user", "content": "abc"}]
    with (
        anthropic.Anthropic(base_url=faulty.url, api_key="any", max_retries=0, default_headers=wish) as other,
        pytest.raises(anthropic.APIStatusError, match="on purpose"),
    ):
        list(other.messages.create(model="fake", max_tokens=TOKENS, messages=question, stream=True))


def test_a_whole_answer_is_no_json_and_as_long_as_it_says(faulty: Server) -> None:
    answer = post(faulty, "truncated_json; keep=0.25")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(answer.content) > 0
    assert not is_json(answer.text)
    assert post(faulty, "truncated_json", stream=True).text.endswith("data: [DONE]\n\n")


def test_a_slow_answer_is_the_same_answer(faulty: Server) -> None:
    """The delay is not measured here; `test_latencies_have_their_quantiles` checks the distribution."""
    text = [post(faulty, fault, stream=True).text for fault in (None, "slow; first_token=0.05; token=0.001")]
    assert written(text[0]) == written(text[1])
    assert post(faulty, "slow; first_token=0.01").json()["choices"] == post(faulty).json()["choices"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("rate_limits", "did you mean rate_limit"),
        ("cut; after_token=3", "after_token: there is no such key (did you mean after_tokens?)"),
        ("cut; how=politely", "how is 'politely': expected 'end' or 'close' or 'reset'"),
        ("slow; first_token=-1", "first_token is -1"),
        ("slow; first_token=nan", "first_token is nan"),
        ("slow; first_token=[[[", "first_token is '[[['"),
    ],
)
def test_a_wish_that_names_no_fault_is_refused(faulty: Server, fault: str, words: str) -> None:
    answer = post(faulty, fault)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Inject-Fault")
    assert words in answer.json()["error"]["message"]


def test_a_body_that_is_too_large_is_refused_as_ever(faulty: Server) -> None:
    parts = (b" " * 2**20 for _ in range(9))
    answer = httpx.post(faulty.url + CHAT, content=parts, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers.get("x-injected-fault")) == (413, None)


def test_faults_are_counted_shown_and_kept_from_what_operators_ask(faulty: Server) -> None:
    post(faulty, "server_error")
    seen = scrape(faulty.url)
    name = "neuronserve:injected_faults_total"
    assert seen.value(name, fault="server_error", rule="header") >= 1
    assert seen.value(name, fault="rate_limit", rule="once") >= 0
    shown = httpx.get(faulty.url + "/inventory").json()["faults"]
    kinds = ["rate_limit", "unavailable", "server_error", "cut"]
    assert shown == {"seed": 7, "rules": kinds, "allow_fault_header": True}
    assert httpx.get(faulty.url + "/health", headers={"X-Inject-Fault": "server_error"}).status_code == 200


def test_without_the_flags_nothing_looks_at_the_header(checkpoint: Path) -> None:
    with running_server(checkpoint) as server:
        assert post(server, "server_error").status_code == 200
        assert httpx.get(server.url + "/inventory").json()["faults"] is None
        assert not scrape(server.url).has("neuronserve:injected_faults_total")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rulez: []", "rulez: there is no such key (did you mean rules?)"),
        ("- a", "the file must be a mapping"),
        ("rules: [{fault: cutt}]", "rules[0].fault is 'cutt': there is no such fault (did you mean cut?)"),
        ("rules: [{probability: 1}]", "rules[0].fault is missing"),
        ("rules: [{fault: cut, probability: 2}]", "rules[0].probability is 2: expected `float` <= 1"),
        (
            "rules: [{fault: cut, match: {modle: a}}]",
            "rules[0].match.modle: there is no such key (did you mean model?)",
        ),
        ("rules: [{fault: slow, token: {medain: 1}}]", "rules[0].token.medain: there is no such key"),
        ("rules: [", "is not YAML"),
        ("seed: 2024-13-45", "is not YAML"),
        ("seed: 2024-12-24", "seed is datetime.date(2024, 12, 24)"),
    ],
)
def test_a_file_with_mistakes_is_refused_by_its_key(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        read_rules(file)
    assert words in str(error.value)


@pytest.mark.slow
def test_a_server_with_such_a_file_does_not_start(checkpoint: Path, tmp_path: Path) -> None:
    ran = run_command("serve", str(checkpoint), "--inject-faults", str(tmp_path / "none.yaml"))
    assert ran.returncode == 2
    assert "--inject-faults: cannot read" in ran.stderr


@given(st.integers(0, 2**32), st.floats(0.05, 0.95), st.integers(1, 4), st.integers(1, 9))
def test_the_choice_follows_from_seed_and_number_alone(seed: int, share: float, every: int, times: int) -> None:
    rules: tuple[Rule, ...] = (ServerError(probability=share, every=every, times=times), ServerError(probability=0.5))

    def labels(between: bool) -> list[str | None]:
        injections = Injections(rules, seed)
        found = []
        for _ in range(60):
            if between:
                assert injections.draw(injections.accepting("/health", {}, {})) is None
            drawn = injections.draw(injections.accepting("/v1/x", {}, {}))
            found.append(drawn and injections.injection(*drawn).label)
        return found

    assert labels(False) == labels(True)
    firsts = [number for number, label in enumerate(labels(False), 1) if label == "1"]
    assert len(firsts) <= times
    assert all(number % every == 0 for number in firsts)


def test_latencies_have_their_quantiles() -> None:
    random, latency = Random(1), Latency(0.2, 2.0)
    drawn = sorted(latency.draw(random) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(0.2, rel=0.05)
    assert drawn[19_800] == pytest.approx(2.0, rel=0.15)
    assert {Latency(0.3).draw(random) for _ in range(3)} == {0.3}


@given(st.lists(st.sampled_from(["data: a", "data: ä\nevent: b", ": hm", "data: {}"]), max_size=6), st.data())
def test_events_are_the_same_however_their_bytes_come(parts: list[str], data: st.DataObject) -> None:
    whole = "".join(f"{part}\n\n" for part in parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    splitter, found = EventSplitter(), []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += splitter.feed(whole[begin:end])
    assert [event.decode() for event in found] == [f"{part}\n\n" for part in parts]
    assert splitter.rest() == b""


def test_the_page_has_every_fault_with_its_keys_and_rules_that_can_be_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "testing.md").read_text()
    for kind, rule in KINDS.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{kind}` |"))
        own = set(rule.__struct_fields__) - set(Rule.__struct_fields__)
        assert {name for name in own if f"`{name}`" in row} == own
    file = tmp_path / "rules.yaml"
    file.write_text(page.split("```yaml\nseed")[1].split("```")[0].join(("seed", "")))
    assert [rule.kind for rule in read_rules(file).rules] == ["rate_limit", "cut", "slow", "server_error"]


def test_every_fault_can_be_wished_for_and_none_shows_a_pattern() -> None:
    for kind in KINDS:
        assert header_rule(kind).kind == kind
    with pytest.raises(InvalidRequest):
        header_rule("")
    shown = FaultConfig((ServerError(match=type(ServerError().match)(api_key="s3cret")),)).as_json()
    assert "s3cret" not in str(shown)
