"""The chart's own command, environment, probes, preStop and grace period, played with real server processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.serving import PATIENCE_S, children, is_engine, until, write_checkpoint
from tests.deploy.balancer import Endpoints, Load, ask
from tests.deploy.chart import CHART, golden, with_settings, workload
from tests.deploy.kubelet import Image, Pod, Termination, close_all
from tests.depth import thorough
from tools.random_checkpoint.writer import write_checkpoint as write_random_checkpoint

DOCUMENTS = golden("lifecycle")
NUM_CLIENTS = 4
HEADERS = {"Authorization": "Bearer second-key"}

StartPod = Callable[[], Pod]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The server with a fake model of 10 ms a step, which the image brings."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("model"))
    return Image((sys.executable, "-m", "tests.deploy.pod_server"), {"NEURONSERVE_MODEL": str(checkpoint)})


@pytest.fixture
def start_pod(image: Image, tmp_path: Path) -> Iterator[StartPod]:
    pods: list[Pod] = []

    def start() -> Pod:
        pods.append(Pod(DOCUMENTS, image, tmp_path / f"pod-{len(pods)}"))
        return pods[-1]

    yield start
    close_all(pods)


def engine_pid(pod: Pod) -> int:
    return next(pid for pid in children(pod.process.pid) if is_engine(pid))


@pytest.mark.slow
@pytest.mark.parametrize("adds_first", [True, thorough(False)], ids=["one more", "one less"])
def test_a_rolling_restart_under_load_fails_no_request(start_pod: StartPod, adds_first: bool) -> None:
    """A pod is added before one goes, as the rendered strategy says; or one goes first, as in a StatefulSet."""
    spec = workload(DOCUMENTS)["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    serving = [start_pod() for _ in range(spec["replicas"])]
    for pod in serving:
        pod.wait_ready()
    load = Load(Endpoints(serving), HEADERS)
    load.start(NUM_CLIENTS)
    until(lambda: load.num_ok > NUM_CLIENTS)
    endings = [*replaced(serving, load, start_pod, adds_first)]
    load.stop()
    assert load.failures == []
    assert load.num_ok > NUM_CLIENTS  # each pod went while requests were under way
    assert [(ended.exit_code, ended.was_killed) for ended in endings] == [(0, False)] * spec["replicas"]
    assert all(pod.num_restarts == 0 for pod in serving)


def replaced(serving: list[Pod], load: Load, start_pod: StartPod, adds_first: bool) -> Iterator[Termination]:
    """Put a new pod in the place of each, one after the other, and tell how the old ones ended."""
    with ThreadPoolExecutor() as deletions:
        pending = []
        for old in tuple(serving):
            if adds_first:
                serving.append(ready(start_pod()))
            serving.remove(old)
            load.endpoints.set(serving)
            pending.append(deletions.submit(old.delete, load.hear))
            if not adds_first:
                pending[-1].result()
                serving.append(ready(start_pod()))
                load.endpoints.set(serving)
        for deletion in pending:
            yield deletion.result()


def ready(pod: Pod) -> Pod:
    pod.wait_ready()
    return pod


@pytest.mark.thorough
def test_without_the_sleep_before_the_signal_requests_would_fail(start_pod: StartPod) -> None:
    """Without preStop the test above would fail: proxies learn of the change too late."""
    first, second = start_pod(), start_pod()
    for pod in (first, second):
        pod.wait_ready()
    load = Load(Endpoints([first, second]), HEADERS)
    load.start(num_clients=4)
    until(lambda: load.num_ok > 4)
    load.endpoints.set([second])
    assert first.delete(pre_stop=lambda: None).exit_code == 0
    until(lambda: bool(load.failures))
    load.stop()
    assert any("draining" in failure or "Connect" in failure for failure in load.failures)


def test_a_deleted_pod_ends_its_streams_takes_nothing_new_and_exits_with_0(image: Image, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    held = Image(image.entrypoint, image.environment | {"FAKE_DEVICE": f"hold:{hold}"})
    pod = Pod(DOCUMENTS, held, tmp_path / "pod")
    try:
        pod.wait_ready()
        failures, endings = deleted_while_it_streams(pod, hold)
    finally:
        pod.close()
    assert failures == [None]
    assert endings == [Termination(0, "", False)]


def deleted_while_it_streams(pod: Pod, hold: Path) -> tuple[list[str | None], list[Termination]]:
    """Delete the pod in the middle of a stream, which goes on when `hold` goes; what came of both."""
    failures: list[str | None] = []
    endings: list[Termination] = []
    heard, streaming = threading.Event(), threading.Event()
    with httpx.Client(base_url=pod.url, timeout=PATIENCE_S) as client:
        stream = threading.Thread(target=lambda: failures.append(ask(client, HEADERS, 50, streaming.set)))
        stream.start()
        assert streaming.wait(PATIENCE_S)
        deletion = threading.Thread(target=lambda: endings.append(pod.delete(pre_stop=heard.wait)))
        deletion.start()
        until(lambda: not pod.is_ready)
        assert httpx.get(pod.url + "/health/ready").status_code == 200  # still serves while proxies learn of it
        heard.set()
        until(lambda: httpx.get(pod.url + "/health/ready").status_code == 503)
        assert httpx.get(pod.url + "/health/live").status_code == 200
        refused = httpx.post(pod.url + "/v1/completions", json={"prompt": "a"}, headers=HEADERS)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        hold.unlink()
        stream.join(PATIENCE_S)
        deletion.join(PATIENCE_S)
    return failures, endings


@pytest.mark.slow
def test_a_dead_engine_is_followed_by_another_in_the_same_pod(start_pod: StartPod) -> None:
    pod = start_pod()
    pod.wait_ready()
    os.kill(engine_pid(pod), signal.SIGKILL)
    with httpx.Client(base_url=pod.url) as client:
        assert ask(client, HEADERS, num_tokens=2) is None
    pod.wait_ready()
    assert pod.num_restarts == 0


def test_the_chat_of_helm_test_passes_and_notices_a_wrong_model(start_pod: StartPod) -> None:
    pod = start_pod()
    pod.wait_ready()
    script = (CHART / "files" / "chat.py").read_text()

    def chat(model: str, keys: str) -> subprocess.CompletedProcess[str]:
        environment = {"BASE_URL": pod.url, "MODEL": model, "API_KEYS": keys}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    # The role, then four tokens: a server that is ahead of its reader puts several in one event.
    assert chat("fake", "first-key, second-key").stdout in {f"fake: {count} events\n" for count in (2, 3, 4, 5)}
    assert "served models are ['fake'], not other" in chat("other", "first-key").stderr
    assert "401" in chat("fake", "third-key").stderr


def test_a_model_that_does_not_fit_says_so_in_the_termination_message(tmp_path: Path) -> None:
    """The server itself, on a part whose memory is nearly all withheld: the account and the advice are what is kept."""
    write_random_checkpoint("tiny-llama", tmp_path / "model")
    tight = with_settings(DOCUMENTS, device="inf2.48xlarge", tensor_parallel_size=24, device_memory_utilization=0.01)
    image = Image((sys.executable, "-m", "neuronserve"), {"NEURONSERVE_MODEL": str(tmp_path / "model")})
    pod = Pod(tight, image, tmp_path / "pod")
    try:
        ended = pod.wait_terminated()
    finally:
        pod.close()
    assert ended.exit_code == 2
    message = ended.message.splitlines()
    assert "NRT_RESOURCE (4): LlamaForCausalLM" in ended.message
    (head,) = (i for i, line in enumerate(message) if line.startswith("core "))
    assert message[head].split() == [
        *(
            "core",
            "weights",
            "kv",
            "scratchpad",
            "collectives",
            "dma_rings",
            "code",
            "runtime",
            "budget",
            "free",
            "(MiB)",
        )
    ]
    assert message[head + 1].startswith("ND 0:NC 0")
    assert message[-2] == "and 16 more cores alike"
    assert message[-1].startswith("no instance of the catalogue holds it")
