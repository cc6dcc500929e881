"""Nemotron-H: layers of one branch: Mamba-2, attention without rotations, a network, or experts (Nemotron 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, field

from ..config_values import Epsilon, Layers, Values, Width, refuse
from ..layer import ExpertsSpec, LayerSpec, NetworkSpec
from ..names import Names
from ..state_layer import Mamba2Spec, StateMixer
from .experts import ExpertCount, balanced_experts
from .hybrid import HybridConfig, StateDim, StateHeads, Taps, one_module
from .mamba import MAMBA_ROWS

Kind = Literal["mamba", "attention", "mlp", "moe"]
_KINDS: dict[str, Kind] = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
_WORDS = {
    "model.embed_tokens": "backbone.embeddings",
    "model.norm": "backbone.norm_f",
    "model.layers": "backbone.layers",
    **one_module(("input_layernorm", "post_attention_layernorm"), "norm"),
    **dict.fromkeys(("self_attn", "mlp", "mamba"), "mixer"),
    **dict.fromkeys(MAMBA_ROWS, "mixer.in_proj"),
    "mlp.shared_expert": "mixer.shared_experts",
}
_NAMES = Names.of(_WORDS, "backbone.")


class NemotronHConfig(HybridConfig, kw_only=True):
    """Keys and defaults of NemotronHConfig."""

    num_hidden_layers: Layers = 4  # as many as the pattern has; a number in the file is not read
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    mlp_hidden_act: Literal["relu2"] = "relu2"
    mamba_hidden_act: Literal["silu"] = "silu"
    hybrid_override_pattern: str | None = None
    layers_block_type: tuple[str, ...] | None = None
    ssm_state_size: StateDim = 128
    mamba_num_heads: StateHeads = 128
    mamba_head_dim: StateDim = 64
    n_groups: StateHeads = 8
    conv_kernel: Taps = 4
    time_step_min: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.001
    use_conv_bias: bool = True
    use_bias: bool = False
    n_routed_experts: ExpertCount = 8
    num_experts_per_tok: ExpertCount = 2
    moe_intermediate_size: Width = 7688
    moe_shared_expert_intermediate_size: Width = 7688
    moe_latent_size: Width | None = None
    routed_scaling_factor: Annotated[float, Meta(gt=0.0, le=1e6)] = 1.0
    n_group: ExpertCount = 1
    topk_group: ExpertCount = 1
    norm_topk_prob: bool = True

    own_names = _NAMES

    def __post_init__(self) -> None:
        self.num_hidden_layers = len(self._kinds())

    def _kinds(self) -> Sequence[Kind]:
        """Return the branch of each layer."""
        pattern = self.layers_block_type or self.hybrid_override_pattern or ("mamba", "moe", "attention", "mlp")
        if unknown := [each for each in pattern if each not in _KINDS]:
            key = "layers_block_type" if self.layers_block_type else "hybrid_override_pattern"
            raise refuse(key, unknown[0], f"supported are {', '.join(_KINDS)}")
        return [_KINDS[each] for each in pattern]

    def state_mixer(self, _: Values) -> StateMixer:
        heads, groups = self.mamba_num_heads, self.n_groups
        if heads % groups:
            raise refuse("mamba_num_heads", heads, f"not a multiple of n_groups, which is {groups}")
        sizes = heads, self.mamba_head_dim, groups, self.ssm_state_size, self.conv_kernel
        return Mamba2Spec(*sizes, self.use_conv_bias, self.use_bias, least_step=self.time_step_min)

    def attends(self) -> Sequence[bool]:
        return [kind == "attention" for kind in self._kinds()]

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        layers = zip(super().layers(values), self._kinds(), strict=True)
        return tuple(
            replace(layer, mixer=None) if kind in ("mlp", "moe") else replace(layer, feed_forward=None)
            for layer, kind in layers
        )

    def experts(self) -> ExpertsSpec | None:
        if not any(self.chooses()):
            return None
        if self.moe_latent_size is not None:
            raise refuse("moe_latent_size", self.moe_latent_size, "experts of another width are not supported")
        shared = self.network(self.moe_shared_expert_intermediate_size)
        return replace(balanced_experts(self, self.n_routed_experts, 0), shared=shared)

    def chooses(self) -> Sequence[bool]:
        return [kind == "moe" for kind in self._kinds()]

    def ropes(self, _: Values) -> Sequence[None]:
        return self.on_all(None)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "relu2", is_gated=False, has_bias=self.mlp_bias)
