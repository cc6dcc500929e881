"""Ops around a layer's branches: its input by token, and several streams in place of one."""

from __future__ import annotations

from collections.abc import Callable

from .layer import LayerSpec
from .linear import Axis, Linear, Vector, WeightRows
from .network_graph import NetworkGraph
from .ops import Activate, Add, Norm, NormOutput, Op, Parallel
from .spec import ModelSpec
from .stream_ops import (
    AddToStreams,
    ChangeStreams,
    LayerInput,
    LayerInputs,
    MergeStreams,
    NormedStream,
    SpreadStreams,
    StreamFactor,
)


class StreamGraph:
    """Maker of these ops for one model: `part` makes all rows of a module, `norm` an RMSNorm, `vector` one tensor."""

    def __init__(
        self,
        spec: ModelSpec,
        networks: NetworkGraph,
        part: Callable[[str, Axis], WeightRows],
        norm: Callable[[str, str], Norm],
        vector: Callable[[str, Axis, str], Vector],
    ) -> None:
        self._spec, self._networks = spec, networks
        self._part, self._norm, self._vector = part, norm, vector
        self._hidden = Axis("hidden", spec.hidden_size)

    def prelude(self) -> tuple[Op, ...]:
        """Return the ops that make the inputs of all layers, and all streams, of the embedding."""
        return (*self._inputs(), *self._products("model.altup_projections", SpreadStreams()))

    def tail(self) -> tuple[Op, ...]:
        """Return the ops that make one stream of several."""
        return self._products("model.altup_unembed_projections", MergeStreams())

    def _products(self, module: str, op: Op) -> tuple[Op, ...]:
        """Return a product for each stream but the first, and `op`."""
        linears = [
            Linear(f"stream_{i + 1}", (self._part(f"{module}.{i}", self._hidden),), self._hidden)
            for i in range(self._spec.num_streams - 1)
        ]
        return (*linears, op) if linears else ()

    def _inputs(self) -> tuple[Op, ...]:
        spec, layers = self._spec.layer_input, self._spec.num_layers
        if spec is None:
            return ()
        size = spec.network.size
        all_layers, vocab = Axis("rows", layers * size), Axis("vocab", spec.vocab_size)
        table = Linear("layer_inputs", (self._part("model.embed_tokens_per_layer", vocab),), all_layers, is_table=True)
        norm = self._vector("model.per_layer_projection_norm", Axis("rows", size), "weight")
        # The projection has a factor of hidden_size ** -0.5, which the norm takes out again except for its eps.
        eps = self._spec.stack.norm.eps * self._hidden.size
        return (
            table,
            Linear("layer_projection", (self._part("model.per_layer_model_projection", all_layers),), self._hidden),
            LayerInputs(table, norm, eps, layers, spec.vocab_size),
        )

    def input_branch(self, layer: LayerSpec, at: str) -> tuple[Op, ...]:
        """Return the branch that a layer's input multiplies, if it has one."""
        if layer.input is None:
            return ()
        size, activation = layer.input.network.size, layer.input.network.activation
        between = Activate(activation), LayerInput(Axis("ffn", size))
        norm = self._norm("input output norm", f"{at}post_per_layer_input_norm")
        ends = (Add(norm),) if layer.streams is None else (NormOutput(norm), AddToStreams())
        modules = f"{at}per_layer_input_gate", f"{at}per_layer_projection"
        return (*self._networks.narrow(size, modules, between, "input"), *ends)

    def layer(self, layer: LayerSpec, at: str, attention: tuple[Op, ...], ffn: tuple[Op, ...]) -> tuple[Op, ...]:
        """Return the ops of a layer of several streams whose modules begin with `at`."""
        spec, altup = layer.streams, f"{at}altup."
        assert spec is not None
        count, modules = spec.count, (f"{at}laurel.linear_left", f"{at}laurel.linear_right")
        laurel = self._networks.narrow(spec.laurel.size, modules, (Activate(spec.laurel.activation),), "laurel")
        norm, router = self._vector(f"{altup}router_norm", self._hidden, "weight"), f"{altup}modality_router"
        modes = norm, self._mixing(router, count)
        scale = self._vector(altup[:-1], self._hidden, "correct_output_scale") if spec.has_output_scale else None
        return (
            ChangeStreams(modes, self._mixing(f"{altup}prediction_coefs", count**2, count), corrects=False),
            self._norm("attention norm", f"{at}input_layernorm"),
            Parallel(
                (
                    (NormedStream(),),
                    (*attention, NormOutput(self._norm("attention output norm", f"{at}post_attention_layernorm"))),
                    (*laurel, NormOutput(self._norm("laurel output norm", f"{at}laurel.post_laurel_norm"))),
                )
            ),
            Add(),
            StreamFactor(0.5**0.5),
            self._norm("ffn norm", f"{at}pre_feedforward_layernorm"),
            *ffn,
            Add(self._norm("ffn output norm", f"{at}post_feedforward_layernorm")),
            ChangeStreams(modes, self._mixing(f"{altup}correction_coefs", count, count), corrects=True, scale=scale),
            *self.input_branch(layer, at),
        )

    def _mixing(self, module: str, rows: int, columns: int = 0) -> Vector:
        """Return a small matrix, [rows, columns], which is no linear layer; without `columns`, of the hidden size."""
        axis = Axis("rows", rows * (columns or self._hidden.size))
        vector = self._vector(module, axis, "weight")
        return Vector(vector.tensor, axis.size, rows=rows)
