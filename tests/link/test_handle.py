"""An engine's process starts beside the imports of its parent, and its users wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess

import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.link import handle
from neuronserve.server.link.handle import EngineEnd, EngineHandle
from neuronserve.server.link.succession import Succession
from tests.api.serving import load_fake, run_fake
from tests.link.test_client import config


def failing_start(begin: threading.Event) -> Callable[..., BaseProcess]:
    """A start that takes until `begin`, and comes to nothing."""

    def start(*_: object) -> BaseProcess:
        begin.wait()
        raise EOFError("the fork server has ended")

    return start


def test_a_start_is_not_waited_for_and_its_error_reaches_who_needs_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = threading.Event()
    monkeypatch.setattr(handle, "_started_process", failing_start(begin))
    engine = EngineHandle(config(), run_fake)
    begin.set()
    with pytest.raises(EOFError, match="the fork server has ended"):
        _ = engine.process
    engine.close()


def test_a_successor_is_told_what_its_predecessor_had_found_out() -> None:
    told: list[EngineConfig] = []

    def note(config: EngineConfig, end: EngineEnd) -> int:
        end.close()
        told.append(config)
        return 0

    info = replace(load_fake(config(num_blocks_override=99), lambda _: None).info, threads_alone=3)
    engine = EngineHandle(config(num_blocks_override=None), note, "thread")
    assert engine.join()
    successor = engine.successor(info)
    assert successor.join()
    engine.close()
    successor.close()
    assert [(each.num_blocks_override, each.threads_alone) for each in told] == [(None, None), (99, 3)]


@pytest.mark.parametrize("inherits", [True, False])
async def test_a_successor_has_what_its_predecessor_has_kept_where_that_may_be_used(inherits: bool) -> None:
    found: list[bytes] = []

    def keep(config: EngineConfig, end: EngineEnd) -> int:
        del config
        found.append(end.kept.read(7, 0))
        end.kept.write([b"a block"], 0)
        end.close()
        return 0

    dead = EngineHandle(config(), keep, "thread")
    assert dead.join()
    successor = await Succession().after(dead, load_fake(config(), lambda _: None).info, inherits)
    assert successor.join()
    assert found == [b"", b"a block" if inherits else b""]
    successor.close()
