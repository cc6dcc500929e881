"""The runner of batches when things happen at the same moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from neuronserve.server.api.batch.runner import BatchRunner


class Batches:
    """A store of one batch, which runs."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def get(self, batch_id: str) -> tuple[Any, None]:
        return SimpleNamespace(status="in_progress", expires_at=2**40), None


def runner_of(batches: Batches) -> BatchRunner:
    service: Any = SimpleNamespace(
        engine=SimpleNamespace(infos=[], num_open=0),
        model=SimpleNamespace(info=SimpleNamespace(max_num_queued_reqs=8)),
        store=SimpleNamespace(batches=batches, files=None),
    )
    return BatchRunner(service)


@pytest.mark.parametrize("turns", range(5))
async def test_a_batch_that_ends_as_another_begins_does_not_wait_for_its_expiry(turns: int) -> None:
    batches = Batches()
    runner = runner_of(batches)
    one: Any = SimpleNamespace(id="one", expires_at=2**40)
    ending = asyncio.create_task(runner._until_ended(one))
    await asyncio.sleep(0.01)
    batches.changed.set()  # another batch was created
    for _ in range(turns):
        await asyncio.sleep(0)
    ending.cancel()  # the lines of this one are answered
    done, _ = await asyncio.wait({ending}, timeout=5)
    assert done
    assert ending.cancelled()
