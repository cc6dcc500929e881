"""A process is held to its memory by the system or by its parent: the work that grows fails, and the next is done."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import pytest

from server.text.limited_process import Handler, LimitedProcess, Refusal, Work
from server.text.memory_limit import LIMITS, MemoryLimit

MIB = 1 << 20
LIMIT = 512 * MIB


def fill(call: bytes) -> str:
    """Write so many MiB, and never end where that is possible."""
    size = int(call) * MIB
    try:
        taken = [mmap.mmap(-1, MIB) for _ in range(0, size, MIB)]
        for each in taken:
            each.write(b"\1" * MIB)
    except (MemoryError, OSError) as error:
        raise Refusal("MemoryError") from error
    return str(len(taken))


def prepare_fill() -> Handler:
    return fill


@pytest.fixture(params=LIMITS)
def process(request: pytest.FixtureRequest) -> Iterator[LimitedProcess]:
    limit: MemoryLimit = request.param
    limited = LimitedProcess(Work("the work", prepare_fill, 60.0, 60.0, LIMIT, limit))
    yield limited
    limited.close()


def test_work_that_grows_too_far_is_refused_and_the_next_is_done(process: LimitedProcess) -> None:
    assert process.call(b"16") == "16"
    with pytest.raises(Refusal, match=r"^MemoryError$|^the work took more than 512 MiB of memory$"):
        process.call(b"4096")
    assert process.call(b"16") == "16"
