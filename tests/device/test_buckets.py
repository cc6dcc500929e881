"""Shapes of a server: given, compiled ahead of time, or automatic."""

from __future__ import annotations

import pytest

from neuronserve.server.device.buckets import BucketLists, CompiledShapes, compiled_shapes, powers_of_two, smallest
from neuronserve.server.errors import SettingsError

AHEAD = BucketLists((128, 512), (256, 1024))
NOTHING = BucketLists()
FULL_LENGTH = BucketLists(has_full_length=True)


def test_automatic_buckets_are_powers_of_two_or_for_decode_the_full_length_alone() -> None:
    powers = (128, 256, 512, 1000)
    assert powers_of_two(1000) == powers
    assert (powers_of_two(128), powers_of_two(64)) == ((128,), (64,))
    assert compiled_shapes("neuron", 8, 1000, NOTHING, None) == CompiledShapes("neuron", 8, powers, powers)
    assert compiled_shapes("continuous", 8, 1000, FULL_LENGTH, None) == CompiledShapes("continuous", 8, powers, (1000,))


def test_what_is_asked_is_ordered_and_decode_reaches_the_full_length() -> None:
    shapes = compiled_shapes("continuous", 8, 1000, BucketLists((512, 64), (300,)), None)
    assert (shapes.context_encoding, shapes.token_generation) == ((64, 512), (300, 1000))
    assert shapes.longest_chunk == 512


def test_asked_decode_buckets_come_before_the_full_length_alone() -> None:
    asked = BucketLists((), (300,), has_full_length=True)
    assert compiled_shapes("neuron", 8, 1000, asked, None).token_generation == (300, 1000)


def test_what_was_compiled_ahead_of_time_is_what_there_is() -> None:
    shapes = compiled_shapes("neuron", 8, 1024, NOTHING, AHEAD)
    assert (shapes.context_encoding, shapes.token_generation) == ((128, 512), (256, 1024))
    assert compiled_shapes("continuous", 8, 1024, FULL_LENGTH, AHEAD).token_generation == (1024,)
    some = compiled_shapes("neuron", 8, 1024, BucketLists((128,), (256,)), AHEAD)
    assert (some.context_encoding, some.token_generation) == ((128,), (256, 1024))


def test_a_shorter_context_runs_on_the_graph_that_holds_it() -> None:
    assert compiled_shapes("continuous", 8, 200, FULL_LENGTH, AHEAD).token_generation == (256,)
    assert compiled_shapes("neuron", 8, 700, BucketLists((), (256,)), AHEAD).token_generation == (256, 1024)


@pytest.mark.parametrize(
    ("max_model_len", "asked", "ahead", "complaint"),
    [
        (1000, BucketLists((2000,)), None, "context_encoding_buckets has 2000: 1 to max_model_len 1000"),
        (1000, BucketLists((), (0,)), None, "token_generation_buckets has 0: 1 to max_model_len 1000"),
        (2000, NOTHING, AHEAD, "max_model_len is 2000: this model was compiled for 1024"),
        (1024, BucketLists((256,)), AHEAD, "context_encoding_buckets has 256: this model was compiled for 128, 512"),
        (1024, BucketLists((), (512,)), AHEAD, "token_generation_buckets has 512: this model was compiled for 256, "),
    ],
)
def test_what_there_is_no_graph_for_is_refused(
    max_model_len: int, asked: BucketLists, ahead: BucketLists | None, complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        compiled_shapes("neuron", 8, max_model_len, asked, ahead)


def test_the_last_power_is_not_close_below_the_longest() -> None:
    """As `generate_buckets(128, longest)` of NxD Inference 4bcdc54."""
    for longest, powers in (
        (4100, (128, 256, 512, 1024, 2048)),
        (1400, (128, 256, 512)),
        (1500, (128, 256, 512, 1024)),
    ):
        assert powers_of_two(longest) == (*powers, longest)
    assert (powers_of_two(150), powers_of_two(1)) == ((150,), (1,))


def test_a_prompt_leaves_its_margin_free_in_all_buckets_but_the_longest() -> None:
    buckets = (128, 256, 512)
    assert [smallest(buckets, tokens) for tokens in (127, 128, 256, 512)] == [128, 128, 256, 512]
    assert [smallest(buckets, tokens, 1) for tokens in (127, 128, 256, 511, 512)] == [128, 256, 512, 512, 512]


def test_prompts_may_have_the_full_length_alone_unless_lengths_are_asked_for() -> None:
    one = BucketLists(has_one_prompt=True)
    assert compiled_shapes("tgi", 4, 512, one, None).context_encoding == (512,)
    asked = BucketLists((128, 512), has_one_prompt=True)
    assert compiled_shapes("tgi", 4, 512, asked, None).context_encoding == (128, 512)
