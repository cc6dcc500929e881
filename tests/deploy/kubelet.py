"""A small kubelet: runs the server container of a rendered workload as a process, and does what the manifest says.

Environment, mounts, probes, restarts, preStop, grace period and termination message are the manifest's. What differs
from a node: a container is a process, mounts are folders whose paths are written into arguments and environment, a
pod's address is 127.0.0.1 with a free port, and a probe that gets no answer in time is asked again and not counted.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.chart import ROOT, Manifest, of_kind, server_container, workload

MESSAGE_BYTES, MESSAGE_LINES = 2048, 80  # that FallbackToLogsOnError keeps of the end of a log


@dataclass(frozen=True)
class Image:
    """Program and environment of an image."""

    entrypoint: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Termination:
    """How a container ended."""

    exit_code: int
    message: str
    was_killed: bool  # the grace period was over


class Pod:
    """One pod of the workload in `documents`. Started at once; `delete` ends it as Kubernetes does."""

    def __init__(self, documents: tuple[Manifest, ...], image: Image, directory: Path) -> None:
        self._documents, self._image, self._directory = documents, image, directory
        self._container = server_container(documents)
        self._grace_s = float(workload(documents)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
        self.port, self._health_port = free_port(), free_port()
        self.is_ready = False
        self.terminations: list[Termination] = []
        self.num_restarts = 0
        self._deleting = threading.Event()
        self._lock = threading.Lock()
        directory.mkdir(parents=True)
        self._mounts = {mount["mountPath"]: self._volume(mount["name"]) for mount in self._container["volumeMounts"]}
        self.process = self._run()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Wait for readiness; fails with the log when it does not come."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def wait_terminated(self, count: int = 1, timeout_s: float = 120) -> Termination:
        """Wait until the container has ended `count` times."""
        deadline = time.monotonic() + timeout_s
        while len(self.terminations) < count:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)
        return self.terminations[-1]

    def delete(self, pre_stop: Callable[[], object] | None = None) -> Termination:
        """preStop, SIGTERM, and SIGKILL when the grace period, which began with preStop, is over.

        `pre_stop` comes in the place of preStop's sleep: the event that the sleep is there to wait for.
        """
        self._deleting.set()
        self.is_ready = False
        deadline = time.monotonic() + self._grace_s
        if pre_stop is None:
            time.sleep(self._container["lifecycle"]["preStop"]["sleep"]["seconds"])
        else:
            pre_stop()
        return self._stop(deadline)

    def close(self) -> None:
        """End what is left, whatever state it is in."""
        self._deleting.set()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._thread.join(10)

    def _stop(self, deadline: float) -> Termination:
        self.process.send_signal(signal.SIGTERM)
        was_killed = False
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            was_killed = True
        return self._ended(was_killed)

    def _ended(self, was_killed: bool = False) -> Termination:
        code = self.process.wait(10)
        tail = "\n".join(self.log.splitlines()[-MESSAGE_LINES:]).encode()[-MESSAGE_BYTES:]
        ended = Termination(code, "" if code == 0 else tail.decode(errors="replace"), was_killed)
        self.terminations.append(ended)
        return ended

    def _run(self) -> subprocess.Popen[bytes]:
        arguments = [self._localized(argument) for argument in self._container["args"]]
        command = [*self._image.entrypoint, *arguments]
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **self._image.environment}
        given = {each["name"]: self._value(each) for each in self._container["env"]}
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                command, env={**base, **given}, stdout=log, stderr=log, cwd=self._mounts["/tmp"], close_fds=True
            )

    def _localized(self, text: str) -> str:
        """`text` with paths of mounts, the port and the address of this pod."""
        text = re.sub(rf"^--port={self._container['ports'][0]['containerPort']}$", f"--port={self.port}", text)
        text = re.sub(r"^--health-port=\d+$", f"--health-port={self._health_port}", text)
        text = re.sub(r"^--host=0\.0\.0\.0$", "--host=127.0.0.1", text)
        paths = "|".join(sorted(map(re.escape, self._mounts), key=len, reverse=True))
        return re.sub(rf"(?<![\w/])({paths})(?=/|$)", lambda found: str(self._mounts[found[1]]), text)

    def _value(self, variable: Manifest) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return self._localized(str(variable.get("value", "")))
        if "resourceFieldRef" in source:
            part, _, name = source["resourceFieldRef"]["resource"].partition(".")
            return str(math.ceil(cpus(str(self._container["resources"][part][name]))))
        ref = source["secretKeyRef"]
        (secret,) = (s for s in of_kind(self._documents, "Secret") if s["metadata"]["name"] == ref["name"])
        return base64.b64decode(secret["data"][ref["key"]]).decode()

    def _volume(self, name: str) -> Path:
        path = self._directory / name
        path.mkdir(exist_ok=True)
        volumes = {each["name"]: each for each in workload(self._documents)["spec"]["template"]["spec"]["volumes"]}
        annotations = workload(self._documents)["spec"]["template"]["metadata"]["annotations"]
        for item in volumes.get(name, {}).get("downwardAPI", {}).get("items", ()):
            (key,) = re.findall(r"^metadata\.annotations\['(.+)'\]$", item["fieldRef"]["fieldPath"])
            (path / item["path"]).write_text(annotations[key])
        return path

    def _watch(self) -> None:
        """Startup probe, then liveness and readiness, each at its own pace; the container restarts when it ends."""
        while not self._deleting.is_set():
            self._watch_one_container()
            self.is_ready = False
            if self._deleting.is_set():
                return
            if self.process.poll() is None:  # a probe has failed too often
                self._stop(time.monotonic() + self._grace_s)
            else:
                self._ended()
                if self._deleting.wait(10):  # the first back-off of a crash loop
                    return
            self.num_restarts += 1
            self.process = self._run()

    def _watch_one_container(self) -> None:
        """Returns when the container has ended, must be restarted, or the pod is deleted."""
        startup = _Probe(self._container["startupProbe"])
        liveness, readiness = _Probe(self._container["livenessProbe"]), _Probe(self._container["readinessProbe"])
        while not startup.has_succeeded:
            if startup.has_failed or self._is_over():
                return
            startup.ask(self.url)
            self._deleting.wait(startup.period_s)
        while not self._is_over():
            now = time.monotonic()
            if readiness.is_due(now):
                readiness.ask(self.url)
                with self._lock:
                    self.is_ready = not readiness.has_failed and not self._deleting.is_set()
            if liveness.is_due(now):
                liveness.ask(f"http://127.0.0.1:{self._health_port}")
                if liveness.has_failed:
                    return
            self._deleting.wait(0.05)

    def _is_over(self) -> bool:
        return self._deleting.is_set() or self.process.poll() is not None


class _Probe:
    """One probe and its count."""

    def __init__(self, probe: Manifest) -> None:
        self._path = probe["httpGet"]["path"]
        self._threshold, self._timeout_s = probe["failureThreshold"], probe["timeoutSeconds"]
        self.period_s = float(probe["periodSeconds"])
        self._failures = 0
        self._next = 0.0
        self.has_succeeded = False

    @property
    def has_failed(self) -> bool:
        return bool(self._failures >= self._threshold)

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def ask(self, url: str) -> None:
        self._next = time.monotonic() + self.period_s
        try:
            with urllib.request.urlopen(url + self._path, timeout=self._timeout_s):
                self._failures, self.has_succeeded = 0, True
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if not isinstance(reason, TimeoutError):  # a busy machine is no failure of the pod's
                self._failures += 1


def cpus(quantity: str) -> float:
    """A quantity of CPUs, such as "2" or "1500m"."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: Any = listener.getsockname()[1]
        return int(port)


def close_all(pods: Sequence[Pod]) -> None:
    for pod in pods:
        pod.close()
