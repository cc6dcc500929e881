"""The runtime's variables: what they mean, and refusals with the runtime's own status."""

from __future__ import annotations

import pytest

from neuronserve.server.config import RuntimeCores
from neuronserve.server.device.catalog import instance
from neuronserve.server.device.visible_cores import take_cores, visible_cores
from neuronserve.server.errors import DeviceError

PART = instance("inf2.24xlarge")  # 12 cores


@pytest.mark.parametrize(
    ("visible", "cores"),
    [
        ("3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("0,2,4-5", (0, 2, 4, 5)),
        (" 7 , 1-2", (7, 1, 2)),
        ("11-11", (11,)),
        ("0-11", tuple(range(12))),
    ],
)
def test_cores_are_named_as_the_runtime_takes_them(visible: str, cores: tuple[int, ...]) -> None:
    assert visible_cores(RuntimeCores(visible), PART) == cores
    assert visible_cores(RuntimeCores(visible, "1"), PART) == cores  # the list beats the count


@pytest.mark.parametrize(("count", "cores"), [(None, 12), ("0", 12), ("1", 1), ("12", 12)])
def test_a_count_takes_the_first_cores(count: str | None, cores: int) -> None:
    assert visible_cores(RuntimeCores(None, count), PART) == tuple(range(cores))


@pytest.mark.parametrize(
    "visible", ["", " ", "a", "0-", "-1", "0--3", "1,,2", "0-3,", "0.5", "0x1", "1 2", "²", "9" * 30]
)
def test_what_is_no_list_of_cores_is_invalid(visible: str) -> None:
    with pytest.raises(DeviceError, match=r"^NRT_INVALID \(2\): NEURON_RT_VISIBLE_CORES is "):
        visible_cores(RuntimeCores(visible), PART)


@pytest.mark.parametrize(("visible", "said"), [("3-1", "ascending, unlike 3-1"), ("0-2,1", "without repetition")])
def test_ranges_that_make_no_sense_are_invalid(visible: str, said: str) -> None:
    with pytest.raises(DeviceError, match=rf"^NRT_INVALID \(2\).*{said}"):
        visible_cores(RuntimeCores(visible), PART)


@pytest.mark.parametrize("count", ["-1", "two", "1.0", "0x2", " "])
def test_what_is_no_count_is_invalid(count: str) -> None:
    with pytest.raises(DeviceError, match=r"^NRT_INVALID \(2\): NEURON_RT_NUM_CORES is "):
        visible_cores(RuntimeCores(None, count), PART)


@pytest.mark.parametrize(
    ("asked", "requested", "available"),
    [(RuntimeCores("12"), 1, 0), (RuntimeCores("10-13"), 4, 2), (RuntimeCores(None, "13"), 13, 12)],
)
def test_cores_that_are_not_there_are_refused_in_the_runtimes_words(
    asked: RuntimeCores, requested: int, available: int
) -> None:
    with pytest.raises(DeviceError) as refusal:
        visible_cores(asked, PART)
    assert str(refusal.value).startswith(
        "NRT_FAILURE (1): nrt_allocate_neuron_cores: Logical Neuron Core(s) not available - "
        f"Requested:{requested} Available:{available} ("
    )
    assert "inf2.24xlarge has cores 0-11" in str(refusal.value)


@pytest.mark.parametrize(
    ("asked", "name"),
    [(RuntimeCores("4-5"), "NEURON_RT_VISIBLE_CORES is 4-5"), (RuntimeCores(None, "2"), "NEURON_RT_NUM_CORES is 2")],
)
def test_fewer_cores_than_the_group_needs_are_refused_with_both_settings(asked: RuntimeCores, name: str) -> None:
    assert len(take_cores(asked, PART, 2)) == 2
    with pytest.raises(DeviceError) as refusal:
        take_cores(asked, PART, 4)
    assert str(refusal.value) == (
        f"NRT_LOAD_NOT_ENOUGH_NC (9): tensor_parallel_size is 4 and {name}: this needs 4 NeuronCores, "
        "this process may take 2 of the 12 of inf2.24xlarge"
    )
