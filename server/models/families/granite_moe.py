"""Granite 3 with experts, and those Granite 4 whose layers all attend: dense ones, and experts beside a network.

Granite 4 calls every model a hybrid: where `layer_types` names state-space layers it is refused by that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from neuronserve.server.models.config_values import Values, Width, refuse
from neuronserve.server.models.families.experts import expert_fields
from neuronserve.server.models.families.granite import GraniteConfig
from neuronserve.server.models.names import Names

# Of experts in one tensor, and of the router, a file has names of its own.
_IN_FILES = tuple(
    (f".block_sparse_moe.{stored}.weight", f".block_sparse_moe.{name}")
    for stored, name in (
        ("input_linear", "experts.gate_up_proj"),
        ("output_linear", "experts.down_proj"),
        ("router.layer", "router.weight"),
    )
)
_SHARED = {"gate_proj": "input_linear", "up_proj": "input_linear", "down_proj": "output_linear"}
NAMES = replace(
    Names.of(
        {
            "mlp": "block_sparse_moe",
            "mlp.gate": "block_sparse_moe.router",
            **{
                f"{at}.{word}": f"shared_mlp.{stored}"
                for at in ("mlp", "mlp.shared_expert")
                for word, stored in _SHARED.items()
            },
        },
        "model.",
    ),
    old_endings=_IN_FILES,
)
ExpertsOrNone = Annotated[int, Meta(ge=0, le=4096)]
LayerKind = Literal["attention", "full_attention", "mamba", "linear_attention"]
ATTENDS = ("attention", "full_attention")


class GraniteMoeConfig(GraniteConfig, kw_only=True):
    """Keys and defaults of GraniteMoeConfig."""

    num_local_experts: ExpertsOrNone = 8
    num_experts_per_tok: ExpertsOrNone = 2

    def features(self, values: Values) -> dict[str, Any]:
        if not self.num_experts_per_tok:
            raise refuse("num_experts_per_tok", 0, "must be 1 at least")
        chooses, size = [True] * self.num_hidden_layers, self.intermediate_size
        experts = expert_fields(self.num_local_experts, self.num_experts_per_tok, chooses, size, size)
        return {**super().features(values), **experts, "names": NAMES}


class GraniteMoeHybridConfig(GraniteMoeConfig, kw_only=True):
    """Keys and defaults of GraniteMoeHybridConfig; without experts the network beside them is the only one."""

    shared_intermediate_size: Width = 1024
    layer_types: Sequence[LayerKind] | None = None
    position_embedding_type: Literal["rope", "nope"] | None = None

    def features(self, values: Values) -> dict[str, Any]:
        self._require_attention()
        if self.num_local_experts:
            return {**super().features(values), "shared_intermediate_size": self.shared_intermediate_size}
        dense = {"intermediate_size": self.shared_intermediate_size, "names": NAMES}
        return {**GraniteConfig.features(self, values), **dense}

    def ropes(self, values: Values) -> dict[str, Any]:
        if self.position_embedding_type == "rope":
            return super().ropes(values)
        return {"ropes": (None,) * self.num_hidden_layers}

    def _require_attention(self) -> None:
        types, layers = self.layer_types or ["mamba"] * self.num_hidden_layers, self.num_hidden_layers
        if len(types) != layers:
            raise refuse("layer_types", types, f"must name the type of each of the {layers} layers")
        if recurrent := [kind for kind in types if kind not in ATTENDS]:
            raise refuse("layer_types", recurrent[0], "state-space layers are not supported, all must be attention")
