"""The limit of open files is raised as far as the system takes it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from neuronserve.server.host.open_files import raise_open_files


@pytest.fixture(autouse=True)
def _limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_as_far_as_the_hard_limit_or_where_there_is_one_that_of_a_mac() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_files(lambda _: None)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    raise_open_files({"kern.maxfilesperproc": 512}.get)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, hard)
