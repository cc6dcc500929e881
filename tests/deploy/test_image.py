"""The built image, run as a strict cluster would: read-only, any user id, no capabilities, little memory.

Skipped unless IMAGE names one; `make image-test` builds it first.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.chart import golden, only, server_container, settings_text, with_settings, workload
from tests.deploy.kubelet import free_port
from tests.deploy.test_image_files import pins

IMAGE, BASE_IMAGE = os.environ.get("IMAGE", ""), os.environ.get("BASE_IMAGE", "")
if not IMAGE:
    pytest.skip("no image; `make image-test` builds one", allow_module_level=True)

MAX_BYTES_OVER_BASE = 700e6
STRICT = (
    *("--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--memory", "2g", "--no-healthcheck", "--network", "host"),
)
CHAT = {"model": "default", "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}


def podman(*arguments: str, may_fail: bool = False) -> str:
    """Standard output of a podman command; the log of a container has its standard error too."""
    ran = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=180, check=False)
    assert may_fail or ran.returncode == 0, ran.stderr
    return ran.stdout + (ran.stderr if may_fail else "")


def inspect(name: str, kind: str = "image") -> Any:
    return json.loads(podman(kind, "inspect", name))[0]


class Container:
    """A strict container of the image."""

    def __init__(self, *options: str, arguments: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._begin = time.monotonic()
        environment = ("--env", f"NEURONSERVE_PORT={self.port}", "--env", "NEURONSERVE_HOST=127.0.0.1")
        self.id = podman("run", "--detach", *STRICT, *environment, *options, IMAGE, *arguments).strip()

    def wait_ready(self, timeout_s: float = 120) -> float:
        """Seconds from `podman run` to the first 200 of readiness."""
        while time.monotonic() - self._begin < timeout_s:
            try:
                if httpx.get(self.url + "/health/ready").status_code == 200:
                    return time.monotonic() - self._begin
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.log)

    def wait_ended(self) -> int:
        return int(podman("wait", self.id))

    def run(self, *command: str, may_fail: bool = False) -> str:
        return podman("exec", self.id, *command, may_fail=may_fail)

    @property
    def log(self) -> str:
        return podman("logs", self.id, may_fail=True)

    def remove(self) -> None:
        podman("rm", "--force", "--volumes", "--time", "5", self.id)


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    """One with a user id that the image does not know."""
    running = Container("--user", "123456:0")
    try:
        print(f"\nready {running.wait_ready():.1f} s after podman run")
        yield running
    finally:
        running.remove()


def stream_chat(url: str, **changes: Any) -> list[str]:
    with httpx.stream("POST", url + "/v1/chat/completions", json={**CHAT, **changes}, timeout=120) as response:
        assert response.status_code == 200, response.read()
        return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


def test_the_image_is_small() -> None:
    over = inspect(IMAGE)["Size"] - inspect(BASE_IMAGE)["Size"]
    print(f"\n{over / 1e6:.0f} MB over the base")
    assert over <= MAX_BYTES_OVER_BASE


def test_the_image_says_what_it_is() -> None:
    config = inspect(IMAGE)["Config"]
    assert config["User"] == "10001:0"
    assert config["Entrypoint"] == ["neuronserve"]
    assert set(config["Volumes"]) == {"/cache", "/tmp"}
    assert config["Labels"]["org.opencontainers.image.title"] == "neuronserve"
    assert inspect(IMAGE)["Healthcheck"]["Test"][-1] == "/opt/healthcheck.py"


def test_the_image_lists_what_is_inside(container: Container) -> None:
    """The CycloneDX list has no tools of the builder."""
    bom = json.loads(container.run("cat", "/opt/venv/share/neuronserve/sbom.cdx.json"))
    assert bom["bomFormat"] == "CycloneDX"
    assert bom["metadata"]["component"]["name"] == "neuronserve"
    inside = {(each["name"].lower().replace("_", "-"), each["version"]) for each in bom["components"]}
    locked = pins("requirements.lock")
    assert {(name, locked[name]) for name in ("numpy", "numba", "fastapi")} <= inside
    assert not {name for name, _ in inside} & {"pip", "setuptools", "cyclonedx-bom"}


def test_it_answers_a_streamed_chat(container: Container) -> None:
    events = stream_chat(container.url, max_tokens=16)
    assert events[-1] == "[DONE]"
    memory = podman("stats", "--no-stream", "--no-reset", "--format", "{{.MemUsage}}", container.id).strip()
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    print(f"\nmemory {memory}; {text!r}")
    assert text


def test_it_runs_with_nothing_it_does_not_need(container: Container) -> None:
    status = dict(line.split(":\t") for line in container.run("cat", "/proc/1/status").splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["123456"] * 4
    assert (int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
    assert "Read-only file system" in container.run("touch", "/opt/x", may_fail=True)


def test_the_kernels_came_with_the_image(container: Container) -> None:
    """The cache has what was copied, and nothing that was compiled here."""
    assert len(prebuilt_kernels(container)) > 20
    assert cached_kernels(container) == prebuilt_kernels(container)


def prebuilt_kernels(container: Container) -> list[str]:
    found = container.run("find", "/opt/venv", "-path", "*/kernels/prebuilt/*", "-name", "*.nb?", "-printf", "%f\n")
    return sorted(found.split())


def cached_kernels(container: Container) -> list[str]:
    return sorted(container.run("find", "/cache/kernels", "-name", "*.nb?", "-printf", "%f\n").split())


def test_no_compiler_no_torch_and_no_installer_are_inside(container: Container) -> None:
    for program in ("gcc", "cc", "g++", "clang", "make"):
        assert container.run("sh", "-c", f"command -v {program} || echo none").strip() == "none"
    packages = container.run("sh", "-c", "ls /opt/venv/lib/python3*/site-packages").split()
    assert "transformers" in packages
    assert not {"torch", "pip", "setuptools", "pytest"} & set(packages)


def test_the_command_has_all_its_parts(container: Container) -> None:
    for command in (("version",), ("bench", "serve", "--help"), ("bench", "latency", "--help")):
        assert container.run("neuronserve", *command)


def test_the_health_check_passes(container: Container) -> None:
    kind, *command = inspect(IMAGE)["Healthcheck"]["Test"]
    assert kind == "CMD"
    container.run(*command)


def test_a_term_signal_lets_the_stream_finish() -> None:
    container = Container()
    try:
        container.wait_ready()
        with httpx.stream(
            "POST", container.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 200}, timeout=120
        ) as response:
            lines = response.iter_lines()
            next(lines)
            podman("kill", "--signal", "TERM", container.id)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert container.wait_ended() == 0
    finally:
        container.remove()


def test_a_model_that_does_not_fit_ends_it_with_the_account() -> None:
    container = Container(arguments=("serve", "--device-memory-utilization", "0.01"))
    try:
        assert container.wait_ended() == 2
        assert "NRT_RESOURCE (4)" in container.log
        assert "weights" in container.log[-2048:]
    finally:
        container.remove()


@pytest.mark.parametrize(
    "changes",
    [{}, {"data_parallel_size": 2, "pace": "device", "batching": "neuron", "kv_cache_dtype": "int8"}],
    ids=["default", "modelled"],
)
def test_it_runs_as_the_chart_starts_it(tmp_path: Path, changes: dict[str, object]) -> None:
    """Arguments, settings, environment and user of the default values."""
    documents = golden("default")
    (tmp_path / "config.yaml").write_text(settings_text(with_settings(documents, **changes)))
    tmp_path.chmod(0o755)
    user = workload(documents)["spec"]["template"]["spec"]["securityContext"]
    options = [f"--user={user['runAsUser']}:{user['runAsGroup']}", f"--volume={tmp_path}:/etc/neuronserve:ro"]
    options += [f"--env={e['name']}={e['value']}" for e in server_container(documents)["env"] if "value" in e]
    arguments = [each for each in server_container(documents)["args"] if not each.startswith(("--port", "--host"))]
    container = Container(*options, arguments=tuple(arguments))
    try:
        container.wait_ready()
        assert stream_chat(container.url, max_tokens=4)[-1] == "[DONE]"
        assert helm_test(container.url).startswith("default: ")
        assert cached_kernels(container) == prebuilt_kernels(container)
    finally:
        container.remove()


def helm_test(url: str) -> str:
    """Output of the chart's test pod, with its command and memory limit."""
    (chat,) = only(golden("default"), "Pod")["spec"]["containers"]
    strict = [*STRICT, "--memory", chat["resources"]["limits"]["memory"].removesuffix("i").lower()]
    entrypoint, *arguments = chat["command"]
    environment = ("--env", f"BASE_URL={url}", "--env", "MODEL=default")
    return podman("run", "--rm", *strict, *environment, "--entrypoint", entrypoint, IMAGE, *arguments)


def test_a_host_without_kernels_in_the_image_compiles_them_once(container: Container) -> None:
    """Kernels compiled at the start stay in the cache's volume; the next container compiles none."""
    (prebuilt,) = set(container.run("find", "/opt/venv", "-type", "d", "-path", "*/kernels/prebuilt").split())
    kernels = []
    options = (f"--tmpfs={prebuilt}:notmpcopyup", "--volume", "neuronserve-test-cache:/cache")
    try:
        for _ in range(2):
            cold = Container(*options)
            try:
                cold.wait_ready(600)
                written = cold.run("find", "/cache/kernels", "-name", "*.nbc", "-printf", r"%f %T@\n")
                kernels.append(sorted(written.splitlines()))
                assert stream_chat(cold.url, max_tokens=4)[-1] == "[DONE]"
            finally:
                cold.remove()
    finally:
        podman("volume", "rm", "--force", "neuronserve-test-cache")
    assert len(kernels[0]) > 10
    assert kernels[1] == kernels[0]


def test_tracing_is_inside() -> None:
    container = Container(arguments=("serve", "--otlp-traces-endpoint", "http://127.0.0.1:9"))
    try:
        container.wait_ready()
    finally:
        container.remove()


def test_a_cache_that_cannot_be_written_is_named() -> None:
    container = Container(arguments=("serve", "--kernel-cache-dir", "/opt/kernels"))
    try:
        assert container.wait_ended() == 2
        assert "kernel_cache_dir is /opt/kernels: cannot write there: Read-only file system" in container.log
    finally:
        container.remove()
