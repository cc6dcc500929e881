"""Serving stacks: their rules, and what their hosts add to a step."""

from __future__ import annotations

from dataclasses import fields

import pytest

from neuronserve.server.cost.calibration import default_calibration
from neuronserve.server.cost.stacks import NEW_STACK_CHIPS, STACK_NAMES, STACKS, HostWork, default_stack
from neuronserve.server.device.chips import CHIPS

HOST = HostWork(request_s=1.0, slot_s=1e-3, logit_s=1e-6, copy_s=1e-8)


def test_every_stack_is_there_under_its_name_with_its_source() -> None:
    assert tuple(STACKS) == STACK_NAMES
    assert all(stack.meaning and stack.source for stack in STACKS.values())


@pytest.mark.parametrize(
    ("busy", "slots", "vocab", "seconds"),
    [
        (1, 1, 0, 0.0),
        (1, 32, 0, 0.0),  # the first slot's work is in the step itself
        (5, 32, 0, 4e-3),
        (1, 32, 1000, 32 * 1e-8 * 1000),  # all compiled slots are brought to a host that samples
        (5, 32, 1000, 4 * (1e-3 + 1e-6 * 1000) + 32 * 1e-8 * 1000),
        (0, 4, 0, 0.0),
    ],
)
def test_what_a_host_adds_to_a_step(busy: int, slots: int, vocab: int, seconds: float) -> None:
    assert HOST.step_s(busy, slots, vocab) == pytest.approx(seconds)


def test_the_work_of_an_ideal_host_is_none() -> None:
    assert HostWork().step_s(64, 64, 128_256) == 0.0
    assert default_calibration().host("ideal") == HostWork()
    assert all(getattr(HostWork(), field.name) == 0.0 for field in fields(HostWork))


def test_a_static_batch_waits_for_its_last_answer_and_the_others_do_not() -> None:
    assert [name for name, stack in STACKS.items() if not stack.is_continuous] == ["nxd-static"]
    assert STACKS["nxd-static"].batching == "static"
    assert STACKS["nxdi-vllm"].batching == "neuron"


def test_chips_that_the_older_stack_no_longer_covers_have_the_newer_one() -> None:
    names = {chip.name for chip in CHIPS}
    assert names >= set(NEW_STACK_CHIPS)
    for name in names:
        assert default_stack(name).name == ("vllm-neuron" if name in NEW_STACK_CHIPS else "nxdi-vllm")
