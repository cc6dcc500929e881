"""Ops around a layer's two branches: inputs of layers by token."""

from __future__ import annotations

from collections.abc import Callable

from .layer import LayerInputSpec
from .linear import Axis, Linear, Vector, WeightRows
from .ops import Activate, Add, LayerInput, LayerInputs, Norm, Op


class StreamGraph:
    """Maker of these ops for one model: `part` makes all rows of a module, `norm` an RMSNorm, `vector` one tensor."""

    def __init__(
        self,
        part: Callable[[str, Axis], WeightRows],
        norm: Callable[[str, str], Norm],
        vector: Callable[[str, Axis, str], Vector],
        hidden: Axis,
    ) -> None:
        self._part, self._norm, self._vector, self._hidden = part, norm, vector, hidden

    def inputs(self, spec: LayerInputSpec | None, layers: int) -> tuple[Op, ...]:
        """Return the ops that make the inputs of `layers` layers of the embedding and the token."""
        if spec is None:
            return ()
        size = spec.network.size
        all_layers, vocab = Axis("rows", layers * size), Axis("vocab", spec.vocab_size)
        table = Linear("layer_inputs", (self._part("model.embed_tokens_per_layer", vocab),), all_layers, is_table=True)
        norm = self._vector("model.per_layer_projection_norm", Axis("rows", size), "weight")
        # The projection has a factor of hidden_size ** -0.5, which the norm takes out again except for its eps.
        eps = self._norm("", "model.norm").eps * self._hidden.size
        return (
            table,
            Linear("layer_projection", (self._part("model.per_layer_model_projection", all_layers),), self._hidden),
            LayerInputs(table, norm, eps, layers, spec.vocab_size),
        )

    def input_branch(self, spec: LayerInputSpec | None, at: str) -> tuple[Op, ...]:
        """Return the branch that a layer's input multiplies."""
        if spec is None:
            return ()
        inner = Axis("ffn", spec.network.size)
        return (
            Linear("input_gate", (self._part(f"{at}per_layer_input_gate", inner),), self._hidden),
            Activate(spec.network.activation),
            LayerInput(inner),
            Linear("input_projection", (self._part(f"{at}per_layer_projection", self._hidden),), inner),
            Add(self._norm("input output norm", f"{at}post_per_layer_input_norm")),
        )
