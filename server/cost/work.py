"""Work of a step in the units of terms.py: the formulas of the cost model.

Formulas with their reasons: docs/internals/cost-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device.chips import GB
from ..device.instances import Instance
from ..errors import DeviceError, SettingsError
from ..host.memory import GIB
from ..models.spec import ModelSpec
from ..placement.core_share import core_lora_weights
from .shape import (
    ACTIVATION_BYTES,
    STORED_BYTES,
    CoreShape,
    cached_positions,
    kv_elements,
    pair_products,
    state_bytes,
    state_flops,
)

HIDDEN_UNIT = 4096  # slot_layer and activation are stated for this hidden size
OLD_LAUNCH_SDK = 16  # 2.16
OLD_GATHER_SDK = 19  # 2.19
RETURNED_BYTES = 4  # of a value that a pass returns: float32
STATE_CHUNK = 64  # tokens of a prompt that update a state together: transformers' torch_chunk_gated_delta_rule
CURRENT_SDK = 28  # 2.28, the newest release in the published rows

Work = dict[str, float]  # units by the name of their term; a missing term is 0


@dataclass(frozen=True, slots=True)
class Runtime:
    """Properties of the serving software that determine the work of a step on the device."""

    weight_dtype: str = "bfloat16"
    is_continuous: bool = True  # continuous batching: requests come and go, so the cache is addressed by slot
    sdk: int = CURRENT_SDK  # minor release of Neuron SDK 2.x
    tokens_per_slot: int = 1  # of a decode step: with speculative decoding the draft's tokens and one more
    lora_rank: int = 0  # of the adapter of each slot; 0: no adapters
    is_tnx_other: bool = False  # transformers-neuronx with a model other than Llama
    kv_bytes: float = ACTIVATION_BYTES  # of one element of the KV cache

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Reasons why no published measurement covers this software."""
        reasons = {
            "no measurement with 4-bit weights is in the calibration": STORED_BYTES.get(self.weight_dtype, 2) < 1,
            "no measurement with LoRA adapters is in the calibration": self.lora_rank > 0,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)


class StepWork:
    """Work of the steps of one model on one tensor-parallel group."""

    def __init__(self, model: ModelSpec, instance: Instance, tp: int, runtime: Runtime) -> None:
        """Raises DeviceError when the instance cannot form the group, SettingsError for an unknown dtype."""
        if not 1 <= tp <= instance.num_cores:
            raise DeviceError(f"tensor_parallel_size is {tp}: {instance.name} has {instance.num_cores} NeuronCores")
        if runtime.weight_dtype not in STORED_BYTES:
            raise SettingsError(f"weight dtype {runtime.weight_dtype!r} is none of {', '.join(STORED_BYTES)}")
        chip = instance.chip
        link = instance.link or chip.link
        self.model, self.runtime, self.core = model, runtime, CoreShape.of(model, tp)
        self.weight_bytes = STORED_BYTES[runtime.weight_dtype]
        wide_bytes = STORED_BYTES["int8-groups"] if self.weight_bytes < 1 else self.weight_bytes
        self.wider_output = self.core.head_weights * (wide_bytes - self.weight_bytes)
        self.lora_weights = core_lora_weights(model, tp, runtime.lora_rank)
        self.source_len = 0 if model.source is None else model.source.max_position  # read by cross attention
        self.source_weights = 0  # of the decoder, that make its keys and values of this encoder's states
        self.flop_s = chip.cores_per_chip / ((chip.tflops["bfloat16"] or 0) * 1e12)
        self.byte_s = chip.cores_per_chip / (chip.bandwidth_gb_s * GB)
        self.link_byte_s = 1 / (link.gib_s_per_chip * GIB) if link else 0.0
        self.engines = chip.lnc  # sets of vector and DMA engines in a logical core
        self.has_ring = tp > chip.cores_per_chip
        self.ring_share = 2 * (tp - 1) / tp

    def weights_read(self, tokens: int) -> float:
        """Return the weights that one core reads to compute `tokens` tokens."""
        core = self.core
        experts = sum(group.layers * group.fetched(tokens) * group.weights for group in core.experts)
        return core.attention_weights + core.ffn_weights + core.head_weights + experts

    def dense_flops(self, tokens: int, sampled: int) -> float:
        """Return one core's operations in matmuls but for experts: `tokens` in layers, `sampled` in the head."""
        core = self.core
        every = core.attention_weights + core.ffn_weights + self.lora_weights
        return 2.0 * (tokens * every + sampled * core.head_weights)

    def matmul_flops(self, tokens: int, sampled: int) -> float:
        """Return one core's operations in matmuls with weights, with the experts that each token chooses."""
        chosen = sum(group.layers * group.per_token * group.weights for group in self.core.experts)
        return self.dense_flops(tokens, sampled) + 2.0 * tokens * chosen

    def link_bytes(self, tokens: int) -> float:
        """Return the bytes that one core sends in the two all-reduces of every layer (ring: 2 (tp-1)/tp each)."""
        return 2 * self.model.num_layers * tokens * self.model.hidden_size * ACTIVATION_BYTES * self.ring_share

    def kv_bytes(self, positions: int) -> float:
        """Return the bytes of K and V on one core of one sequence that was compiled for `positions` positions."""
        return kv_elements(self.model, self.core.tp, positions) * self.runtime.kv_bytes

    @property
    def states_moved(self) -> float:
        """Bytes of one sequence's states that a step reads and writes on one core."""
        return 2.0 * state_bytes(self.model, self.core.tp)

    def state_flops(self, tokens: int, chunk: int = 0) -> float:
        """Return one core's operations that update states by `tokens` tokens, of prompts in chunks of `chunk`."""
        return float(tokens * state_flops(self.model, self.core.tp, chunk))

    def attention_flops(self, pairs: float) -> float:
        """Return one core's operations for `pairs` query-key pairs in every head and layer: scores, weighted values."""
        return 2.0 * pairs * pair_products(self.model, self.core.tp)

    def decode(self, batch: int, bucket: int) -> Work:
        """Return the work of a decode of `batch` slots over the compiled `bucket`, for any contents of the slots."""
        model, positions, tokens = self.model, batch * bucket, batch * self.runtime.tokens_per_slot
        weights = self.weights_read(tokens)
        is_gathered = self.runtime.is_continuous and batch > 1
        work = {
            "weights": self._stored_bytes(weights, batch) * self.byte_s,
            "kv": batch * (self.kv_bytes(bucket) + self.kv_bytes(self.source_len) + self.states_moved) * self.byte_s,
            "layer_launch": float(model.num_layers),
            "collectives": float(model.num_layers) if self.core.tp > 1 else 0.0,
            "ring_collectives": float(model.num_layers) if self.has_ring else 0.0,
            "decode_matmul": (self.matmul_flops(tokens, tokens) + self.state_flops(tokens)) * self.flop_s,
            "slot_layer": self._token_layers(tokens),
            "kv_gather": batch * cached_positions(model, bucket) / self.engines if is_gathered else 0.0,
            "dequant": self._widened(weights),
            "expert_load": float(sum(group.layers * group.gathered(tokens) for group in self.core.experts)),
        }
        return work | self._old_software(positions if is_gathered else 0)

    def prefill(self, bucket: int, prompts: int = 1, behind: int = 0, has_all_logits: bool = False) -> Work:
        """Return the work of a call with `prompts` prompts padded to `bucket`, each behind `behind` cached positions.

        `has_all_logits`: logits of every position are computed, not only of each prompt's last.
        """
        model, tokens = self.model, prompts * bucket
        sampled = tokens if has_all_logits else prompts
        weights = self.weights_read(tokens)
        pairs = prompts * float(bucket) * (bucket + behind + self.source_len)
        activation = self._token_layers(tokens)
        return {
            "prefill_weights": self._stored_bytes(weights, prompts) * self.byte_s,
            "kv": prompts * (self.kv_bytes(behind) + self.kv_bytes(self.source_len) + self.states_moved) * self.byte_s,
            "dequant": self._widened(weights),
            "prefill_matmul": self.dense_flops(tokens, sampled) * self.flop_s,
            "activation": activation,
            "attention": (self.attention_flops(pairs) + self.state_flops(tokens, STATE_CHUNK)) * self.flop_s,
            "prefill_launch": float(model.num_layers),
            "prefill_call": 1.0,
            "expert_matmul": 2.0 * tokens * sum(group.tiled for group in self.core.experts) * self.flop_s,
            "prefill_link": self.link_bytes(tokens) * self.link_byte_s,
            "tnx_activation": activation if self.runtime.is_tnx_other else 0.0,
        }

    def encode(self, bucket: int, texts: int, values: int) -> Work:
        """Return the work of one pass of an encoder over `texts` texts padded to `bucket`, which returns `values`.

        The values are float32. The output layer is left out. Collectives are those of other steps: passes were
        measured on one core alone.
        """
        model, tokens = self.model, texts * bucket
        weights = self.weights_read(tokens) - self.core.head_weights + self.source_weights
        flops = self.matmul_flops(tokens, 0) + self.attention_flops(texts * float(bucket) * bucket)
        flops += 2.0 * tokens * self.source_weights
        return {
            "encode_matmul": flops * self.flop_s,
            "encode_layer": float(model.num_layers),
            "encode_call": 1.0,
            "encode_activation": self._token_layers(tokens),
            "encode_weights": weights * self.weight_bytes * self.byte_s,
            "encode_output": values * RETURNED_BYTES,
            "dequant": self._widened(weights),
            "collectives": float(model.num_layers) if self.core.tp > 1 else 0.0,
            "ring_collectives": float(model.num_layers) if self.has_ring else 0.0,
            "prefill_link": self.link_bytes(tokens) * self.link_byte_s,
        }

    def _stored_bytes(self, weights: float, adapters: int) -> float:
        """Return the bytes of `weights` and of as many gathered `adapters`, one for each slot.

        The output layer of 4-bit formats has 8 bits; in fp8 it is counted as Neuron's own software stores it.
        """
        return weights * self.weight_bytes + self.wider_output + adapters * self.lora_weights * ACTIVATION_BYTES

    def _token_layers(self, tokens: int) -> float:
        return tokens * self.model.num_layers * self.model.hidden_size / HIDDEN_UNIT / self.engines

    def _widened(self, weights: float) -> float:
        return weights / self.engines if self.weight_bytes < ACTIVATION_BYTES else 0.0

    def _old_software(self, gathered: int) -> Work:
        model, sdk = self.model, self.runtime.sdk
        return {
            "old_launch": float(max(0, OLD_LAUNCH_SDK - sdk) * model.num_layers),
            "old_kv_gather": float(gathered * model.num_layers * model.num_kv_heads) if sdk < OLD_GATHER_SDK else 0.0,
        }
