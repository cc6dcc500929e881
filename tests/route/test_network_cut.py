"""A replica whose network is cut: nothing is refused or reset, packets only stop."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.serving import running_server, until
from tests.route.routers import metric, running_router
from tests.route.test_resume import KINDS, SLOW, ask, check

NAME = f"nsr{os.getpid() % 100_000}"  # of the namespace and, with a letter, of the ends of its cable
OURS, THEIRS = "10.213.77.1", "10.213.77.2"
COMMANDS = (
    f"netns add {NAME}",
    f"link add {NAME}a type veth peer name {NAME}b netns {NAME}",
    f"addr add {OURS}/30 dev {NAME}a",
    f"link set {NAME}a up",
    f"-n {NAME} addr add {THEIRS}/30 dev {NAME}b",
    f"-n {NAME} link set {NAME}b up",
    f"-n {NAME} link set lo up",
)


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace that the host reaches at THEIRS."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        for command in COMMANDS:
            ip(command)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not available: {error.stderr.decode().strip()}")
    try:
        yield NAME
    finally:
        ip(f"netns del {NAME}")


@pytest.mark.slow
def test_streams_go_on_elsewhere_when_a_network_falls_silent_and_the_replica_is_used_again_when_it_is_back(
    checkpoint: Path, namespace: str
) -> None:
    under = ("ip", "netns", "exec", namespace)
    with (
        running_server(checkpoint, *SLOW, "--host", THEIRS, "--allowed-hosts", "*", under=under) as far,
        running_server(checkpoint, *SLOW) as near,
        running_router(far.url, near.url, "--silence-timeout", "0.5") as router,
        ThreadPoolExecutor(64) as pool,
    ):
        expected = [ask(near.url, kind)[1] for kind in range(len(KINDS))]
        until(lambda: sum(metric(router.url, "neuronserve_route_replica_up").values()) == 2)
        answers = [pool.submit(ask, router.url, kind) for kind in range(64)]
        until(lambda: all(metric(router.url, "neuronserve_route_open_tokens").values()))
        ip(f"link set {namespace}a down")
        for kind, answer in enumerate(answers):
            check(answer, expected[kind % len(KINDS)])
        assert metric(router.url, "neuronserve_route_lost_requests_total")[far.url] > 0
        ip(f"link set {namespace}a up")
        until(lambda: sum(metric(router.url, "neuronserve_route_replica_up").values()) == 2)
