"""`neuronserve serve --models`: several models behind one port, which share an accelerator that may hold only one."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.cli.account import account_of
from neuronserve.cli.several_models import rows_of
from neuronserve.server.api.endpoints.models import AnthropicModel, ModelCard
from neuronserve.server.api.wire.ollama import OllamaModel
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import (
    Server,
    children,
    command,
    environment,
    is_running,
    run_command,
    running,
    running_server,
    until,
    write_checkpoint,
)
from tests.route.routers import replica_pids
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.writer import Options
from tools.random_checkpoint.writer import write_checkpoint as write_checkpoint_of

COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 100, "ignore_eos": True}
PATIENT = ("--max-model-wait", "600")  # a busy machine loads slowly
HALF = 10.0  # GiB: the rest of a core has no room for a second such model


def write_model(directory: Path, **config: Any) -> Path:
    """A fake model that takes `gib` of each core, at a `pace`."""
    file = write_checkpoint(directory) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"gib": HALF, "pace": "slow:0.01"} | config))
    return directory


def post(server: Server, model: str | None, path: str = COMPLETIONS, **fields: Any) -> httpx.Response:
    body = BODY | ({} if model is None else {"model": model}) | fields
    return httpx.post(f"{server.url}{path}", json=body, timeout=120)


def stream(server: Server, model: str, num_tokens: int = 100) -> str:
    answer = post(server, model, stream=True, max_tokens=num_tokens)
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text[-300:]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert {event["model"] for event in events} == {model}
    return "".join(choice["text"] for event in events for choice in event["choices"])


def loaded(server: Server) -> list[str]:
    return [row["name"] for row in httpx.get(f"{server.url}/api/ps").json()["models"]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    return write_model(base / "a"), write_model(base / "b")


@pytest.fixture(scope="module")
def server(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Both models need all cores, so that one at a time is loaded."""
    data = str(tmp_path_factory.mktemp("data"))
    beside = ("--models", f"other={folders[1]}", "--tensor-parallel-size", "2", "--data-dir", data, *PATIENT)
    with running_server(folders[0], *beside) as both:
        yield both


def test_a_model_is_loaded_when_a_request_names_it(server: Server) -> None:
    for model in ("other", "fake", "other"):
        assert post(server, model).json()["model"] == model
        assert loaded(server) == [model]
        listed = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [row["id"] for row in listed] == ["fake", "other"]
        assert [row["name"] for row in httpx.get(f"{server.url}/api/tags").json()["models"]] == ["fake", "other"]
        assert httpx.get(f"{server.url}/v1/models/{model}").json() in listed
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert post(server, None).json()["model"] == "fake"


def test_streams_of_both_take_turns_and_none_is_cut(server: Server) -> None:
    expected = {model: stream(server, model) for model in ("fake", "other")}
    with ThreadPoolExecutor(8) as pool:
        asked = [("fake", "other")[number % 2] for number in range(8)]
        answers = list(pool.map(lambda model: stream(server, model), asked))
    assert answers == [expected[model] for model in asked]


def test_a_stream_in_use_ends_before_its_model_does(server: Server) -> None:
    expected = stream(server, "fake", 300)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(stream, server, "fake", 300)
        until(lambda: metric(server, "vllm:num_requests_running", "fake") == 1)
        other = pool.submit(stream, server, "other")
        assert other.result()
        assert long.done()
        assert long.result() == expected
    assert loaded(server) == ["other"]


def metric(server: Server, name: str, model: str) -> float:
    """A metric of one model, by the label that it has in a server of its own."""
    text = httpx.get(f"{server.url}/metrics").text
    found = re.search(rf'^{name}\{{[^}}]*model_name="{model}"[^}}]*\}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("target", ["engine", "server"])
def test_streams_survive_a_kill_of_their_models_engine_and_server(server: Server, target: str) -> None:
    expected = stream(server, "fake", 200)
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(stream, server, "fake", 200) for _ in range(2)]
        until(lambda: metric(server, "vllm:num_requests_running", "fake") == 2)
        os.kill((server.engine_pids if target == "engine" else replica_pids(server))[0], signal.SIGKILL)
        assert [each.result() for each in streams] == [expected] * 2


def test_names_are_found_in_forms_queries_paths_and_with_ollamas_tag(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": False}
    answer = httpx.post(f"{server.url}/api/chat", json=chat | {"model": "other:latest"}, timeout=120)
    assert answer.json()["model"] == "other:latest"
    form = httpx.post(
        f"{server.url}/v1/audio/transcriptions", files={"file": b"RIFF"}, data={"model": "other"}, timeout=120
    )
    assert form.status_code == 400  # by the fake model, which hears nothing
    assert loaded(server) == ["other"]
    assert post(server, None, f"{COMPLETIONS}?model=fake").json()["model"] == "fake"
    assert httpx.get(f"{server.url}/v1/models/other").json()["id"] == "other"
    assert loaded(server) == ["fake"]


def test_an_unknown_name_is_a_404_that_names_the_others(server: Server) -> None:
    before = loaded(server)
    refused = post(server, "nope")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "fake, other" in refused.json()["error"]["message"]
    assert httpx.get(f"{server.url}/v1/models/nope").status_code == 404
    assert loaded(server) == before


def test_a_stored_response_is_found_with_the_model_that_is_loaded(server: Server) -> None:
    made = httpx.post(f"{server.url}/v1/responses", json={"model": "other", "input": "hi"}, timeout=120).json()
    found = httpx.get(f"{server.url}/v1/responses/{made['id']}")
    assert found.json()["model"] == "other"
    assert loaded(server) == ["other"]


def test_lists_in_anthropics_format_have_both(server: Server) -> None:
    page = httpx.get(f"{server.url}/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [AnthropicModel(**row).id for row in page["data"]] == [page["first_id"], page["last_id"]]


def test_rows_before_a_load_have_the_fields_of_those_after_it() -> None:
    kinds = {"/v1/models": ModelCard, "anthropic": AnthropicModel, "/api/tags": OllamaModel}
    for path, kind in kinds.items():
        row = {key: "name" if value is None else value for key, value in rows_of(512, "generate", 7)[path][0].items()}
        assert kind(**row).model_dump(mode="json", exclude_none=True) == row


def test_models_lie_on_cores_of_their_own_and_end_with_the_server(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"model: {folders[1]}\nmax-model-len: 128\n")
    beside = ("--models", f"other={folders[1]}", f"short={tmp_path / 'own.yaml'}", "--data-dir", "", *PATIENT)
    with running_server(folders[0], *beside) as server:
        assert post(server, "other").status_code == 200
        assert loaded(server) == ["fake", "other"]
        engines = server.engine_pids
        server.signal(signal.SIGHUP)
        until(lambda: len(set(server.engine_pids) - set(engines)) == 2)
        assert post(server, "other").status_code == 200
        refused = post(server, "short", prompt="long " * 100)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert loaded(server) == ["other", "short"]
        pids = children(server.process.pid)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        until(lambda: not any(map(is_running, pids)))
        assert re.search("other on NeuronCore 1: 10.00, host 2.00; short on NeuronCore 0: 10.00", server.last_words())


def test_a_model_that_has_no_room_in_time_is_refused_and_may_be_asked_again(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    held = write_model(tmp_path / "held", pace=f"hold:{hold}")
    broken = write_model(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    beside = ("--models", f"other={folders[1]}", f"broken={broken}", "--tensor-parallel-size", "2")
    with running_server(held, *beside, "--max-model-wait", "1") as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stream, server, "fake", 20)
        until(lambda: metric(server, "vllm:num_requests_running", "fake") == 1)
        refused = post(server, "other")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_loaded")
        assert "fake on NeuronCore 0-1: 10.00" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        hold.unlink()
        assert waiting.result()
        until(lambda: post(server, "other").status_code == 200)
        until(lambda: post(server, "broken").json()["error"]["code"] == "model_failed")
        until(lambda: post(server, "fake").status_code == 200)


def test_without_a_key_nothing_is_loaded_or_listed(folders: tuple[Path, Path]) -> None:
    beside = ("--models", f"other={folders[1]}", "--tensor-parallel-size", "2", "--api-key", "secret", *PATIENT)
    with running_server(folders[0], *beside) as server:
        key = {"authorization": "Bearer secret"}
        body = BODY | {"model": "other"}
        for path in ("/v1/models", "/v1/models/other", "/api/ps"):
            assert httpx.get(f"{server.url}{path}").status_code == 401
        assert httpx.post(f"{server.url}{COMPLETIONS}", json=body).status_code == 401
        assert [row["name"] for row in httpx.get(f"{server.url}/api/ps", headers=key).json()["models"]] == ["fake"]
        assert httpx.post(f"{server.url}{COMPLETIONS}", json=body, headers=key, timeout=120).status_code == 200


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["b={big}"], "b needs 200.00 GiB of the host's memory"),
        (["b={none}"], "gib is 0"),
        (["b=/nowhere"], "/nowhere"),
        (["fake={big}"], "'fake' is the name of two models"),
        (["b={big}", "--replicas", "2"], "replicas is 2"),
        (["b={big}", "--multi-model-endpoint"], "leave out MODEL"),
    ],
)
def test_what_can_never_be_served_is_refused_at_the_start(
    argv: list[str], said: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    paths = {"big": write_model(tmp_path / "big", gib=1000), "none": write_model(tmp_path / "none", gib=0)}
    given = [each.format(**paths) for each in argv]
    name = ("--served-model-name", "fake")
    ended = run_command("serve", str(folders[0]), *name, "--port", "0", "--models", *given)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_sagemaker_loads_and_unloads_models(folders: tuple[Path, Path], tmp_path: Path) -> None:
    argv = ("serve", "--multi-model-endpoint", "--tensor-parallel-size", "2", "--port", "0", *PATIENT)
    with running(command(*argv), environment()) as server, httpx.Client(base_url=server.url, timeout=120) as client:

        def load(name: str, path: Path) -> httpx.Response:
            return client.post("/models", json={"model_name": name, "url": str(path)})

        assert client.get("/ping").status_code == 200
        assert client.get("/models").json() == {"models": []}
        row = {"modelName": "a", "modelUrl": str(folders[0])}
        assert load("a", folders[0]).json() == row
        assert load("a", folders[0]).status_code == 409
        assert client.get("/models").json() == {"models": [row]}
        assert client.get("/models/a").json() == row
        invoked = client.post(
            "/models/a/invoke", json=BODY, headers={"X-Amzn-SageMaker-Target-Model": "a.tar.gz"}
        ).json()
        assert (invoked["model"], invoked["usage"]["completion_tokens"]) == ("a", 100)
        full = load("b", folders[1])
        assert (full.status_code, full.json()["error"]["code"]) == (507, "insufficient_memory")
        assert load("big", write_model(tmp_path / "big", gib=1000)).status_code == 507
        assert load("none", tmp_path / "nowhere").status_code == 400
        assert client.post("/models", json={"model_name": "a"}).status_code == 400
        assert client.delete("/models/a").json() == row
        for refused in (
            client.get("/models/a"),
            client.delete("/models/a"),
            client.post("/models/a/invoke", json=BODY),
        ):
            assert refused.status_code == 404
        assert load("b", folders[1]).status_code == 200
        assert client.get("/models").json()["models"][0]["modelName"] == "b"


@pytest.mark.parametrize("runner", ["generate", "pooling"])
def test_an_account_is_what_the_engine_enters_in_its_ledger(runner: str, tmp_path: Path, kernel_cache: str) -> None:
    base, path = tmp_path / "base", tmp_path / "other"
    write_checkpoint_of("tiny-qwen3", base, Options())
    write_checkpoint_of("tiny-llama", path, Options())
    write_adapter(tmp_path / "sql", adapter_tensors(base, 4, seed=1))
    (tmp_path / "other.yaml").write_text(f"model: {path}\nrunner: {runner}\n")
    limits = ("--max-num-seqs", "4", "--max-model-len", "64", "--kernel-cache-dir", kernel_cache, "--cpu-threads", "1")
    own = load_settings(ServeSettings, [str(path), *limits, "--runner", runner])
    account = account_of(own.engine_config(path))
    beside = ("--lora-modules", f"sql={tmp_path / 'sql'}", "--models", f"other={tmp_path / 'other.yaml'}")
    with running_server(base, *limits, *beside, "--data-dir", "", *PATIENT, program="neuronserve") as server:
        kind = {"generate": "completions", "pooling": "embeddings"}[runner]
        answer = httpx.post(f"{server.url}/v1/{kind}", json={"model": "other", "prompt": "a", "input": "a"})
        assert answer.json()["model"] == "other"
        assert post(server, "sql", max_tokens=4).json()["model"] == "sql"
        listed = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [row["id"] for row in listed] == ["fake", "sql", "other"]
        found = httpx.get(f"{server.url}/inventory?model=other").json()["memory"]
        core = {use: size for use, size in found["core"].items() if use not in ("budget", "capacity")}
        assert (sum(core.values()),) == account.cores
        assert sum(found["host"].values()) <= account.host_bytes
