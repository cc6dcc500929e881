"""Keys of Mamba-2 that families share; Bamba, which attends on some layers, and Falcon-H1, which does on all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..config_values import Values, Width, read_record, refuse
from ..layer import LayerSpec, RopeSpec
from ..names import Names
from ..rope import DEFAULT_THETA, rope_object, rope_of
from ..spec import EmbeddingSpec, HeadSpec
from ..state_layer import Mamba2Spec, StateMixer
from .hybrid import HybridConfig, StateDim, StateHeads, Taps, one_module

# Rows of one projection, in the order of the file.
MAMBA_ROWS = one_module([f"mamba.in_{part}" for part in ("z", "x", "b", "c", "dt")], "mamba.in_proj")
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it: JSON has none
Multiplier = Annotated[float, Meta(ge=-1e6, le=1e6)]
LayerAt = Annotated[int, Meta(ge=0, le=4096)]


BAMBA = Names.of(
    {
        "model.norm": "model.final_layernorm",
        "post_attention_layernorm": "pre_ff_layernorm",
        "mlp": "feed_forward",
        **MAMBA_ROWS,
    },
    "model.",
)


class MambaKeys(msgspec.Struct, kw_only=True):
    """Keys and defaults of Mamba-2 that Bamba, Granite 4 and Falcon-H1 have in common."""

    mamba_n_heads: StateHeads = 128
    mamba_n_groups: StateHeads = 1
    mamba_d_state: StateDim = 256
    mamba_d_head: StateDim | Literal["auto"] = "auto"
    mamba_d_conv: Taps = 4
    mamba_expand: Annotated[float, Meta(gt=0.0, le=64.0)] = 2.0
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[float, float | dict[str, str]] | None = None

    def mixer(self, hidden_size: int, inner_size: int | None = None) -> Mamba2Spec:
        """Return the mixer; `inner_size` is that of all heads together, None where it follows from `mamba_expand`."""
        heads, groups = self.mamba_n_heads, self.mamba_n_groups
        size = int(self.mamba_expand * hidden_size) if inner_size is None else inner_size
        head_dim = size // heads if self.mamba_d_head == "auto" else self.mamba_d_head
        if head_dim * heads != size:
            raise refuse("mamba_n_heads", heads, f"with mamba_d_head {head_dim} it does not make {size} elements")
        if heads % groups:
            raise refuse("mamba_n_heads", heads, f"not a multiple of mamba_n_groups, which is {groups}")
        bias = self.mamba_conv_bias, self.mamba_proj_bias
        sizes = heads, head_dim, groups, self.mamba_d_state, self.mamba_d_conv
        return Mamba2Spec(*sizes, *bias, "after_gate", *self._step_limits())

    def _step_limits(self) -> tuple[float, float]:
        least, most = self.time_step_limit or (0.0, math.inf)
        if isinstance(most, dict) and most != _INFINITY:
            raise refuse("time_step_limit", most, "the upper limit must be a number")
        return least, math.inf if isinstance(most, dict) else most


class BambaConfig(HybridConfig, kw_only=True):
    """Keys and defaults of BambaConfig."""

    attn_layer_indices: tuple[LayerAt, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    partial_rotary_factor: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.5

    own_names = BAMBA

    def state_mixer(self, values: Values) -> StateMixer:
        return read_record(values, MambaKeys).mixer(self.hidden_size)

    def attends(self) -> Sequence[bool]:
        if self.attn_layer_indices is not None:
            return [i in self.attn_layer_indices for i in range(self.num_hidden_layers)]
        kinds = {"attention": True, "full_attention": True, "mamba": False, "linear_attention": False}
        return self.types(self.layer_types or ["mamba"] * self.num_hidden_layers, kinds, every=1)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        path, rope = rope_object(values)
        outer = {**values, "partial_rotary_factor": self.partial_rotary_factor}
        return self.on_all(rope_of(outer, rope, path, self.max_position_embeddings, DEFAULT_THETA, may_be_partial=True))


class FalconH1Config(HybridConfig, kw_only=True):
    """Keys and defaults of FalconH1Config: attention and Mamba-2 side by side in every layer, with factors."""

    mamba_d_ssm: Width | None = 1024
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    projectors_bias: bool = False
    mamba_proj_bias: bool = False
    lm_head_multiplier: Multiplier = 1.0
    embedding_multiplier: Multiplier = 1.0
    mlp_multipliers: tuple[Multiplier, Multiplier] | None = None
    key_multiplier: Multiplier = 1.0
    attention_in_multiplier: Multiplier = 1.0
    attention_out_multiplier: Multiplier = 1.0
    ssm_multipliers: tuple[Multiplier, Multiplier, Multiplier, Multiplier, Multiplier] | None = None
    ssm_in_multiplier: Multiplier = 1.0
    ssm_out_multiplier: Multiplier = 1.0

    def state_mixer(self, values: Values) -> StateMixer:
        self.require_no_bias("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
        mixer = read_record(values, MambaKeys).mixer(self.hidden_size, self.mamba_d_ssm)
        if not self.mamba_rms_norm:
            return replace(mixer, norm="none")
        return replace(mixer, norm="before_gate" if self.mamba_norm_before_gate else "after_gate")

    def attends(self) -> Sequence[bool]:
        return self.on_all(True)

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        state = self.state_mixer(values)
        return tuple(replace(layer, beside=state) for layer in super().layers(values))

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, self.embedding_multiplier)

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, scale=self.lm_head_multiplier)

    def names(self) -> Names:
        gate, down = self.mlp_multipliers or (1.0, 1.0)
        parts = zip(["z", "x", "b", "c", "dt"], self.ssm_multipliers or (1.0,) * 5, strict=True)
        factors = {
            "self_attn.q_proj": self.attention_in_multiplier,
            "self_attn.k_proj": self.attention_in_multiplier * self.key_multiplier,
            "self_attn.v_proj": self.attention_in_multiplier,
            "self_attn.o_proj": self.attention_out_multiplier,
            "mlp.gate_proj": gate,
            "mlp.down_proj": down,
            "mamba.out_proj": self.ssm_out_multiplier,
            **{f"mamba.in_{part}": self.ssm_in_multiplier * factor for part, factor in parts},
        }
        return replace(BAMBA, factors=tuple(factors.items()))
