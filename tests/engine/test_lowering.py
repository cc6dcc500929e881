"""A graph as instructions: how layers read the stream; an op without a kernel is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.server.device.hbm import Buffer
from neuronserve.server.engine.graph_slice import GraphSlice
from neuronserve.server.engine.load import loading, machine
from neuronserve.server.engine.load.loading import LoadedEngine
from neuronserve.server.engine.load.weights import ModelWeights, PackedMatrix
from neuronserve.server.engine.lowering import build_program
from neuronserve.server.engine.operands import Placement
from neuronserve.server.errors import DeviceError
from neuronserve.server.kernels.compilation import compile_kernels
from neuronserve.server.kernels.program import Program
from neuronserve.server.models.graph import Graph
from neuronserve.server.models.linear import Linear, Vector
from neuronserve.server.models.spec import ModelSpec, NormSpec
from neuronserve.server.types import SamplingParams, ScheduledSeq
from tests.engine.config import engine_config
from tests.model_specs import network_of, with_attention, with_depth, with_input, with_layer_options, with_stack
from tools.random_checkpoint.writer import Options, write_checkpoint

Change = Callable[[ModelSpec], ModelSpec]
GREEDY = SamplingParams(1, temperature=0.0)


@dataclass(frozen=True)
class Placed:
    """A loaded engine, and where its model lies."""

    engine: LoadedEngine
    placement: Placement


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory, kernel_cache: str) -> Callable[..., Placed]:
    """Load a random model by its name."""

    @cache
    def load_it(name: str, tensor_parallel_size: int = 1) -> Placed:
        directory: Path = tmp_path_factory.mktemp("lowering") / name
        write_checkpoint(name, directory, Options())
        config = engine_config(
            directory,
            kernel_cache,
            tensor_parallel_size=tensor_parallel_size,
            dtype="float32",
            max_model_len=64,
            max_num_seqs=2,
            max_num_batched_tokens=32,
            enable_prefix_caching=False,
            num_blocks_override=8,
            cpu_threads=1,
        )
        placed: list[Placement] = []

        def keep(placement: Placement, *args: Any, **kwargs: Any) -> Program:
            placed.append(placement)
            return build_program(placement, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "build_program", keep)
            return Placed(loading.load_engine(config, lambda _: None), placed[0])

    return load_it


@pytest.fixture
def placement(load: Callable[..., Placed]) -> Placement:
    return load("tiny-llama").placement


@pytest.mark.parametrize(
    ("name", "tensor_parallel_size"),
    [("tiny-llama", 1), ("tiny-olmo2", 2), ("tiny-opt-after", 1), ("tiny-neox", 2), ("tiny-gemma2", 1)],
)
def test_two_halves_in_order_compute_what_the_whole_does(
    load: Callable[..., Placed], name: str, tensor_parallel_size: int
) -> None:
    """Norms before, after and on the stream; branches side by side; learned positions."""
    placed = load(name, tensor_parallel_size)
    runner, num_layers = placed.engine.runner, placed.placement.spec.num_layers
    first = build_program(placed.placement, part=GraphSlice(range(1), embeds=True, end="stream"))
    second = build_program(placed.placement, part=GraphSlice(range(1, num_layers), embeds=False, end="logits"))
    assert len(first) > 5
    assert second.labels[0].startswith("layer 1")
    tokens = tuple(range(5, 17))
    whole = runner.logits(tokens)
    seq = ScheduledSeq("a", tokens, 0, [[1, 2]] * len(placed.placement.cache.groups), True, GREEDY, tokens, len(tokens))
    runner._inputs.fill([seq])
    runner._inputs.sample(range(len(tokens)))
    for program in (first, second):
        compile_kernels(program.kernels, lambda _: None, 1)
        runner.pool.run(program, runner._inputs.address)
    np.testing.assert_array_equal(runner._sampler.logits[: len(tokens), : whole.shape[1]], whole)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda spec: with_attention(with_stack(spec, kind="encoder"), score_cap=30.0),
            "layer 0: no kernel computes Attention to both sides with a cap, sinks or chunks",
        ),
    ],
)
def test_an_op_without_a_kernel_is_refused_by_name(placement: Placement, change: Change, complaint: str) -> None:
    with pytest.raises(DeviceError) as error:
        build_program(replace(placement, spec=change(placement.spec)))
    assert str(error.value) == complaint


def instructions(placement: Placement, change: Change) -> list[tuple[str, dict[str, int]]]:
    """Label and first core's operands of what a changed model becomes; its weights are some of the placed one's."""
    spec = change(with_depth(placement.spec, 1))
    program = build_program(replace(placement, spec=spec, weights=_AnyWeights(placement.weights)))
    rows = zip(program.labels, program.fields, program.operands, strict=True)
    return [(label, dict(zip(fields, operands[0].tolist(), strict=True))) for label, fields, operands in rows]


class _AnyWeights:
    """Weights of a model whose vectors, tables and matrices are wherever some of the placed ones are."""

    def __init__(self, weights: ModelWeights) -> None:
        self.embedding, self._weights = weights.embedding, weights
        self._vector = next(iter(weights.vectors.values()))[0]
        self.tables = dict.fromkeys(("model.embed_positions.weight", "model.embed_token_types.weight"), self._vector)

    def vector(self, _: Vector, __: int = 0) -> Buffer:
        return self._vector

    def embedding_tiles(self, graph: Graph) -> PackedMatrix | None:
        return self._weights.embedding_tiles(graph)

    def matrix(self, linear: Linear) -> PackedMatrix:
        name = linear.modules[0].replace("up_proj", "gate_proj")
        return replace(self._weights.matrices[name], weights="float32")


def labels(placement: Placement, change: Change) -> list[str]:
    return [label.removeprefix("layer 0 ") for label, _ in instructions(placement, change)]


def norms(placement: str, kind: str = "rms") -> Change:
    return lambda spec: with_layer_options(with_stack(spec, norm=NormSpec(kind, 1e-5)), norms=placement)  # type: ignore[arg-type]


def ungated(spec: ModelSpec) -> ModelSpec:
    return with_layer_options(spec, feed_forward=replace(network_of(spec), is_gated=False))


ATTENTION = ["qkv", "rope", "attention", "o pack", "o"]
FFN = ["gate_up", "down pack", "down"]
END, UNNORMED_END = ["final norm", "logits"], ["lm_head inputs", "logits"]
ROWS = ["embeddings positions", "embeddings token_types"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (norms("before"), ["embed", "attention norm", *ATTENTION, "ffn norm", *FFN, *END]),
        (norms("before", "layer"), ["embed", "attention norm", *ATTENTION, "ffn norm", *FFN, *END]),
        (
            lambda spec: with_layer_options(spec, norms="before_ffn"),
            ["embed", "qkv inputs", *ATTENTION, "ffn norm", *FFN, *END],
        ),
        (norms("parallel"), ["embed", "attention norm", *ATTENTION, *FFN, *END]),
        (norms("parallel_each"), ["embed", "attention norm", *ATTENTION, "ffn norm", *FFN, *END]),
        (
            lambda spec: with_input(spec, num_positions=64, num_token_types=2),
            ["embed", *ROWS, "attention norm", *ATTENTION, "ffn norm", *FFN, *END],
        ),
        (
            lambda spec: with_input(spec, has_norm=True),
            ["embed", "embeddings embedding norm", "attention norm", *ATTENTION, "ffn norm", *FFN, *END],
        ),
        (
            norms("stream"),
            ["embed", "qkv inputs", *ATTENTION, "attention output norm", *FFN, "ffn output norm", *UNNORMED_END],
        ),
        (
            ungated,
            ["embed", "attention norm", *ATTENTION, "ffn norm", "up", *FFN[1:], *END],
        ),
    ],
)
def test_a_layer_is_packed_once_for_each_way_it_is_read(
    placement: Placement, change: Change, expected: list[str]
) -> None:
    assert labels(placement, change) == expected


def test_branches_side_by_side_have_partial_sums_of_their_own_and_are_added_up_at_once(placement: Placement) -> None:
    by_label = dict(instructions(placement, norms("parallel_each")))
    stride = placement.buffers.sizes.partial
    assert by_label["layer 0 down"]["output"] - by_label["layer 0 o"]["output"] == stride
    counts = [by_label[name]["num_partials"] for name in ("layer 0 attention norm", "layer 0 ffn norm", "final norm")]
    assert counts == [0, 0, 2]


def test_a_norm_that_stays_is_the_stream_that_the_next_layer_reads(placement: Placement) -> None:
    by_label = dict(instructions(placement, norms("stream", "layer")))
    assert [by_label[f"layer 0 {name} output norm"]["stays"] for name in ("attention", "ffn")] == [1, 1]
    assert (by_label["lm_head inputs"]["weight"], by_label["lm_head inputs"]["num_partials"]) == (0, 0)
