"""Several API processes at one port: they share their knowledge, and a death takes only the process's own sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import Server, children, is_running, run_command, running_server, until
from tests.api.telemetry.scraping import Scrape, scrape
from tests.api.test_batches import create, line_of, results
from tests.api.test_batches import ended as batch_end
from tests.api.test_life import TEXT, events, status
from tests.api.test_responses import UNENDING, ask

NUM_WORKERS = 2
WORKERS = ("--api-workers", str(NUM_WORKERS))
LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "temperature": 0.8}


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = str(tmp_path_factory.mktemp("workers"))
    with running_server(checkpoint, *WORKERS, "--device", "slow:0.01", "--data-dir", data_dir) as running:
        yield running


def worker_pids(server: Server) -> list[int]:
    """Pids of the API processes, which alone of the server's children hold the port."""
    return [pid for pid in children(server.process.pid) if holds_port(pid, server.port)]


def holds_port(pid: int, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets(pid))
    return False


def sockets(pid: int) -> list[Any]:
    return psutil.Process(pid).net_connections("tcp")


@contextlib.contextmanager
def clients(server: Server) -> Iterator[dict[int, httpx.Client]]:
    """A client with an open connection to each worker, by the worker's pid."""
    with contextlib.ExitStack() as stack:
        found = {}
        for pid in worker_pids(server):
            others = [other for other in worker_pids(server) if other != pid]
            client = found[pid] = stack.enter_context(httpx.Client(base_url=server.url))
            with paused(others):  # so that this one accepts
                assert client.get("/health/ready").status_code == 200
        assert len(found) == NUM_WORKERS
        yield found


def both(by_pid: dict[int, httpx.Client], url: str) -> list[openai.OpenAI]:
    """The workers' clients as openai's, in their order."""
    return [openai.OpenAI(base_url=f"{url}/v1", api_key="any", http_client=client) for client in by_pid.values()]


def text_of(lines: Iterator[str]) -> str:
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines if line != "[DONE]")


def undisturbed(server: Server, body: dict[str, Any]) -> str:
    answer: str = httpx.post(server.url + TEXT, json=body).json()["choices"][0]["text"]
    return answer


@contextlib.contextmanager
def streams(server: Server, bodies: list[dict[str, Any]]) -> Iterator[dict[int, list[Iterator[str]]]]:
    """One started stream of each body for each worker's pid, with its first event."""
    with contextlib.ExitStack() as stack, clients(server) as by_pid:
        found: dict[int, list[Iterator[str]]] = {pid: [] for pid in by_pid}
        for body in bodies:
            for pid, client in by_pid.items():
                # Each stream occupies its client's connection, so that the next one needs another by the same worker.
                with paused([other for other in by_pid if other != pid]):
                    response = stack.enter_context(client.stream("POST", TEXT, json=body | {"stream": True}))
                assert response.status_code == 200
                found[pid].append(events(response))
        yield found


@contextlib.contextmanager
def paused(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def is_whole(server: Server, but: int = 0) -> bool:
    """Whether all workers are there and serve, and `but` is not among them."""
    pids = worker_pids(server)
    return len(pids) == NUM_WORKERS and but not in pids and status(server.url, "/health/ready") == 200


def used_blocks(server: Server) -> float:
    return scrape(server.url).value("neuronserve:kv_cache_blocks", state="used")


def bodies_of(count: int) -> list[dict[str, Any]]:
    return [LONG | {"prompt": f"story {i}", "seed": i} for i in range(count)]


@pytest.mark.slow
def test_a_killed_worker_takes_its_own_sockets_alone(server: Server) -> None:
    bodies, engine_pid = bodies_of(3), server.engine_pid
    expected = [undisturbed(server, body) for body in bodies]
    with streams(server, bodies) as open_streams, ThreadPoolExecutor(8) as pool:
        for each in (stream for streams_of in open_streams.values() for stream in streams_of):
            next(each)
        victim, survivor = open_streams
        firsts = [pool.submit(text_of, each) for each in open_streams[survivor]]
        os.kill(victim, signal.SIGKILL)
        for each in open_streams[victim]:
            with pytest.raises(httpx.TransportError):
                list(each)
        assert undisturbed(server, {"prompt": "at once", "max_tokens": 4})  # there is one who accepts
        for got, whole in zip(firsts, expected, strict=True):
            assert whole.endswith(got.result())
            assert len(got.result()) >= len(whole) - 16  # all but the first event
    assert server.engine_pid == engine_pid
    until(lambda: is_whole(server, but=victim))
    until(lambda: used_blocks(server) == 0)  # nobody computes for the dead one's clients
    with clients(server) as by_pid:
        answers = {client.post(TEXT, json=bodies[0]).json()["choices"][0]["text"] for client in by_pid.values()}
        assert answers == {expected[0]}


@pytest.mark.slow
def test_a_killed_engine_is_a_pause_for_every_worker(server: Server) -> None:
    bodies, engine_pid = bodies_of(2), server.engine_pid
    expected = [undisturbed(server, body) for body in bodies]
    with ThreadPoolExecutor(4) as pool, clients(server) as by_pid:
        asked = [
            pool.submit(lambda client, body: client.post(TEXT, json=body), client, body)
            for client, body in zip(by_pid.values(), bodies, strict=True)
        ]
        until(lambda: scrape(server.url).value("vllm:num_requests_running") == len(bodies))
        os.kill(engine_pid, signal.SIGKILL)
        assert [each.result().json()["choices"][0]["text"] for each in asked] == expected
        until(lambda: all(client.get("/health/ready").status_code == 200 for client in by_pid.values()))
    assert server.engine_pid != engine_pid
    assert scrape(server.url).value("neuronserve:engine_restarts_total") == 1


@pytest.mark.thorough
def test_a_batch_goes_on_when_its_worker_is_killed(server: Server) -> None:
    lines = [line_of(f"line {i}", max_tokens=40, ignore_eos=True) for i in range(120)]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=8) as client:
        batch_id = create(client, lines).id

        def num_done() -> int:
            counts = client.batches.retrieve(batch_id).request_counts
            assert counts is not None
            return counts.completed

        for pid in worker_pids(server):  # one of them works on it
            done = num_done()
            until(lambda done=done: num_done() > done)  # type: ignore[misc]
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: is_whole(server, but=pid))  # type: ignore[misc]
        assert num_done() < len(lines)
        batch = batch_end(client, batch_id)
        assert (batch.status, batch.request_counts.failed) == ("completed", 0)
        assert [*results(client, batch.output_file_id)] == [line["custom_id"] for line in lines]


def test_what_one_worker_stores_the_others_have(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = both(by_pid, server.url)
        file = one.files.create(file=("a.jsonl", b'{"a": 1}\n'), purpose="batch")
        assert other.files.content(file.id).content == b'{"a": 1}\n'
        other.files.delete(file.id)
        with pytest.raises(openai.NotFoundError):
            one.files.retrieve(file.id)

        first = ask(one, "one")
        assert other.responses.retrieve(first.id).output_text == first.output_text
        assert ask(other, "two", previous_response_id=first.id).status in {"completed", "incomplete"}

        running = ask(one, "long", background=True, max_output_tokens=400, **UNENDING)
        until(lambda: other.responses.retrieve(running.id).status == "in_progress")
        assert other.responses.cancel(running.id).status == "cancelled"
        assert one.responses.retrieve(running.id).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
            other.responses.retrieve(running.id, stream=True)  # it was not created with stream


def test_a_stream_in_the_background_is_followed_at_any_worker(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = both(by_pid, server.url)
        with ask(one, "long", background=True, stream=True, max_output_tokens=60, **UNENDING) as stream:
            first = next(iter(stream))  # and its client leaves
        response_id = first.response.id
        whole = list(other.responses.retrieve(response_id, stream=True))
        assert [event.sequence_number for event in whole] == list(range(len(whole)))
        assert whole[0].type == "response.created"
        assert whole[-1].type == "response.incomplete"
        rest = list(other.responses.retrieve(response_id, stream=True, starting_after=5))
        assert rest == whole[6:] == list(one.responses.retrieve(response_id, stream=True, starting_after=5))


def test_who_follows_a_stream_of_a_worker_that_is_killed_is_told(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = both(by_pid, server.url)
        with ask(one, "long", background=True, stream=True, max_output_tokens=400, **UNENDING) as stream:
            response_id = next(iter(stream)).response.id
            followed = other.responses.retrieve(response_id, stream=True)
            next(iter(followed))
            os.kill(next(iter(by_pid)), signal.SIGKILL)
            with pytest.raises(openai.APIError, match="has ended"):
                list(followed)
    until(lambda: is_whole(server, but=next(iter(by_pid))))


@pytest.mark.slow
def test_a_response_in_the_background_ends_with_its_worker(server: Server) -> None:
    with clients(server) as by_pid:
        (victim, mine), (_, other) = by_pid.items()
        body = {"input": "long", "background": True, "max_output_tokens": 400, "ignore_eos": True}
        response_id = mine.post("/v1/responses", json=body).json()["id"]
        kept = other.post("/v1/responses", json=body).json()["id"]
        os.kill(victim, signal.SIGKILL)
        until(lambda: other.get(f"/v1/responses/{response_id}").json()["status"] == "failed")
        assert "ended" in other.get(f"/v1/responses/{response_id}").json()["error"]["message"]
        until(lambda: other.get(f"/v1/responses/{kept}").json()["status"] == "incomplete")  # the other's own goes on
    until(lambda: is_whole(server, but=victim))


def test_a_scrape_of_any_worker_is_of_the_whole_server(server: Server) -> None:
    def counts(client: httpx.Client) -> tuple[float, ...]:
        seen = Scrape(client.get("/metrics").text)
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:e2e_request_latency_seconds_count")
        found = *(seen.value(name) for name in names), seen.value("http_requests_total", handler=TEXT, status="2xx")
        assert len({(each.name, *each.labels.items()) for each in seen.samples}) == len(seen.samples)
        return found

    with clients(server) as by_pid:
        one, other = by_pid.values()
        one.post(TEXT, json={"prompt": "abc", "max_tokens": 1})  # the series exist from the first request on
        before = counts(one)
        assert counts(other) == before
        for number, client in enumerate([one, other, other]):
            client.post(TEXT, json={"prompt": "abc", "max_tokens": 4, "ignore_eos": True, "seed": number})
        assert counts(one) == counts(other) == tuple(a + b for a, b in zip(before, (9, 12, 3, 3), strict=True))
        victim, survivor = by_pid
        with paused([victim]):
            assert counts(by_pid[survivor]) == counts(by_pid[survivor])  # who says nothing counts as before
        now = counts(one)
        os.kill(victim, signal.SIGKILL)
        until(lambda: is_whole(server, but=victim))
        assert counts(by_pid[survivor]) == now  # and so does who has ended


def test_operators_reach_the_requests_of_every_worker(server: Server) -> None:
    with clients(server) as by_pid, ThreadPoolExecutor(2) as pool:
        one, other = by_pid.values()
        asked = pool.submit(one.post, TEXT, json=bodies_of(1)[0], headers={"X-Request-Id": "mine"})
        until(lambda: scrape(server.url).value("vllm:num_requests_running") == 1)
        assert other.get("/load").json() == {"server_load": 1}
        assert other.post("/admin/abort-request", json={"request_id": "mine"}).json() == {"aborted": 1}
        assert asked.result().json()["error"]["code"] == "aborted"
        assert other.post("/reset_prefix_cache").json() == {"success": True}
        engine_pid = server.engine_pid
        assert other.post("/admin/restart-engine").status_code == 202
        until(lambda: [engine_pid] != server.engine_pids and is_whole(server))


@pytest.mark.thorough
def test_all_drain_and_nobody_is_left(checkpoint: Path, tmp_path: Path) -> None:
    two = (*WORKERS, "--data-parallel-size", "2", "--data-dir", str(tmp_path / "data"))
    ready_file = tmp_path / "ready.json"
    with running_server(checkpoint, *two, "--device", "slow:0.01", "--ready-file", str(ready_file)) as server:
        bodies = bodies_of(2)
        assert json.loads(ready_file.read_text())["pid"] == server.process.pid
        family = [each.pid for each in psutil.Process(server.process.pid).children(recursive=True)]
        refused = run_command("serve", str(checkpoint), "--port", "0", *WORKERS, "--data-dir", str(tmp_path / "data"))
        assert refused.returncode == 2
        assert "another server's" in refused.stderr
        with streams(server, bodies) as open_streams, ThreadPoolExecutor(4) as pool:
            texts = [pool.submit(text_of, each) for lines in open_streams.values() for each in lines]
            engine_pid = server.engine_pids[0]
            os.kill(engine_pid, signal.SIGKILL)  # its requests go on at the other engine
            server.signal(signal.SIGTERM)
            whole = [each.result() for each in texts]
            assert whole[: len(bodies)] == whole[len(bodies) :]  # of one worker and of the other
            assert len(set(whole)) == len(bodies)
        assert server.wait() == 0
        assert not ready_file.exists()
        until(lambda: not any(is_running(pid) for pid in family))


@pytest.mark.thorough
def test_a_worker_that_dies_again_and_again_ends_the_server(checkpoint: Path, tmp_path: Path) -> None:
    with running_server(checkpoint, *WORKERS, "--data-dir", str(tmp_path / "data")) as server:
        kept, *victims = worker_pids(server)
        for _ in range(6):
            os.kill(victims[0], signal.SIGKILL)
            dead = victims[0]

            def next_one(dead: int = dead) -> list[int]:
                return [pid for pid in worker_pids(server) if pid not in {kept, dead}]

            until(lambda next_one=next_one: next_one() or server.process.poll() is not None)  # type: ignore[misc]
            victims = next_one()
        assert server.wait() == 1
        assert "6 times within 60 s" in server.last_words()


@pytest.mark.thorough
def test_nobody_outlives_the_process_that_has_the_engines(checkpoint: Path, tmp_path: Path) -> None:
    with running_server(checkpoint, *WORKERS, "--data-dir", str(tmp_path / "data")) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        until(lambda: not any(is_running(each.pid) for each in family))


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--console",),
        ("--engine-mode", "thread"),
    ],
)
def test_what_needs_one_process_is_refused_by_name(given: tuple[str, ...]) -> None:
    name = given[0].removeprefix("--").replace("-", "_") if given else "data_dir"
    with pytest.raises(SettingsError, match=rf"\b{name}\b"):
        load_settings(ServeSettings, [*WORKERS, *(("--data-dir", "data") if given else ()), *given])
