"""How much work a step is, in units that a calibration prices: the formulas of the cost model. No seconds.

A step's time is the product of its work with the coefficients' prices:
    elapsed = max(compute, memory) + link + overhead
where each of the four is a sum of `work[i] * price[i]`. Work that a data sheet gives a peak for is counted in seconds
at that peak, and its price is one over the efficiency. Formulas with their reasons: docs/cost-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from server.cost.calibration import Coefficients
from server.cost.shape import ACTIVATION_BYTES, WEIGHT_BYTES, CoreShape, experts_read
from server.device.instances import Instance
from server.device.parts import GB, GIB, Topology
from server.errors import DeviceError, SettingsError
from server.models.spec import ModelSpec

HIDDEN_UNIT = 4096  # slot_layer_s is stated for this hidden size
OLD_LAUNCH_SDK = 16  # 2.16
OLD_RESHARD_SDK = 18  # 2.18
OLD_GATHER_SDK = 19  # 2.19
CURRENT_SDK = 24  # 2.24, the newest release in the published rows


class Term(IntEnum):
    """The kinds of work, in the order of a work vector."""

    MATMUL = 0  # s at peak
    ATTENTION = 1  # s at peak
    STREAM = 2  # s at peak: bytes read from device memory
    DEQUANT = 3  # weights widened
    GATHER = 4  # cached positions x slots x layers
    OLD_GATHER = 5  # the same x KV heads of the model
    LINK = 6  # s at peak: bytes x hops over one chip's links
    HOP = 7  # hops in sequence
    LAUNCH = 8  # layers
    PREFILL_LAUNCH = 9  # layers
    OLD_LAUNCH = 10  # layers x releases
    SLOT = 11  # slots x layers x hidden / 4096
    RESHARD = 12  # messages
    HOST = 13  # prefill calls


COMPUTE = slice(Term.MATMUL, Term.STREAM)
MEMORY = slice(Term.STREAM, Term.LINK)
LINKS = slice(Term.LINK, Term.LAUNCH)
OVERHEAD = slice(Term.LAUNCH, Term.HOST + 1)

Work = tuple[float, ...]


def prices(c: Coefficients) -> Work:
    """Seconds that one unit of each Term costs."""
    return (
        1 / c.compute_efficiency,
        1 / c.attention_efficiency,
        1 / c.memory_efficiency,
        c.dequant_value_s,
        c.kv_gather_s,
        c.old_kv_gather_s,
        1 / c.link_efficiency,
        c.hop_s,
        c.layer_launch_s,
        c.prefill_launch_s,
        c.old_launch_s,
        c.slot_layer_s,
        c.old_reshard_s,
        c.prefill_host_s,
    )


def mean_hops(topology: Topology, chips: int) -> float:
    """Mean distance between two of `chips` chips: n/4 on a ring, sqrt(n)/2 on a square torus, 1 through a switch."""
    if chips <= 1:
        return 0.0
    if topology == "switch":
        return 1.0
    ring = chips / 4
    return min(ring, chips**0.5 / 2) if topology == "torus" else ring


@dataclass(frozen=True, slots=True)
class Runtime:
    """What of the serving software decides the work of a step."""

    weight_dtype: str = "bfloat16"
    is_continuous: bool = True  # continuous batching: slots come and go, so the cache is addressed by slot
    sdk: int = CURRENT_SDK  # minor release of Neuron SDK 2.x


class StepWork:
    """The work of the steps of one model over one tensor-parallel group. Constants are worked out once."""

    def __init__(self, model: ModelSpec, instance: Instance, tp: int, runtime: Runtime) -> None:
        """Raises DeviceError when the instance cannot form the group, SettingsError for an unknown dtype."""
        if not 1 <= tp <= instance.num_cores:
            raise DeviceError(f"tensor_parallel_size is {tp}: {instance.name} has {instance.num_cores} NeuronCores")
        if runtime.weight_dtype not in WEIGHT_BYTES:
            raise SettingsError(f"weight dtype {runtime.weight_dtype!r} is none of {', '.join(WEIGHT_BYTES)}")
        chip = instance.chip
        link = instance.link or chip.link
        chips = -(-tp // chip.cores_per_chip)
        self.model, self.runtime, self.core = model, runtime, CoreShape.of(model, tp)
        self.flop_s = chip.cores_per_chip / ((chip.tflops["bfloat16"] or 0) * 1e12)
        self.byte_s = chip.cores_per_chip / (chip.bandwidth_gb_s * GB)
        self.link_byte_s = 1 / (link.gib_s_per_chip * GIB) if link else 0.0
        self.hops = mean_hops(chip.topology, chips)
        self.ring_share = 2 * (tp - 1) / tp
        self.old_launches = max(0, OLD_LAUNCH_SDK - runtime.sdk) * model.num_layers
        is_old_gqa = runtime.sdk < OLD_RESHARD_SDK and model.num_kv_heads < min(tp, model.num_heads)
        self.messages = model.num_layers * tp * tp if is_old_gqa else 0

    def weights_read(self, tokens: int) -> float:
        """Weights that one core reads to push `tokens` tokens through the model."""
        layer = self.core.attention_weights + self.core.ffn_weights * experts_read(self.model, tokens)
        return self.model.num_layers * layer + self.core.head_weights

    def matmul_flops(self, tokens: int, sampled: int) -> float:
        """Operations of one core in the matmuls with weights: `tokens` through the layers, `sampled` to the logits."""
        layer = self.core.attention_weights + self.core.ffn_weights * max(1, self.model.experts_per_token)
        return 2.0 * (tokens * self.model.num_layers * layer + sampled * self.core.head_weights)

    def link_bytes(self, tokens: int) -> float:
        """Bytes that one core sends in the two all-reduces of every layer (ring: 2 (tp-1)/tp of the message)."""
        return 2 * self.model.num_layers * tokens * self.model.hidden_size * ACTIVATION_BYTES * self.ring_share

    def kv_bytes(self, positions: int, streams: int) -> float:
        """K and V of `positions` cached positions over all layers on one core."""
        return 2.0 * positions * self.model.num_layers * streams * self.model.head_dim * ACTIVATION_BYTES

    def attention_flops(self, pairs: float) -> float:
        """Operations of one core for `pairs` query-key pairs in every head and layer: scores and weighted values."""
        return 4.0 * pairs * self.model.num_layers * self.core.query_heads * self.model.head_dim

    def decode(self, batch: int, bucket: int) -> Work:
        """One token for each of `batch` slots over the compiled `bucket`, whatever the slots hold."""
        model, positions = self.model, batch * bucket
        weights = self.weights_read(batch)
        width = WEIGHT_BYTES[self.runtime.weight_dtype]
        rows = positions * model.num_layers if self.runtime.is_continuous and batch > 1 else 0
        return (
            self.matmul_flops(batch, batch) * self.flop_s,
            self.attention_flops(positions) * self.flop_s,
            (weights * width + self.kv_bytes(positions, self.core.kv_streams)) * self.byte_s,
            weights if width == 1 else 0.0,
            rows,
            rows * model.num_kv_heads if self.runtime.sdk < OLD_GATHER_SDK else 0.0,
            self._link_s(batch),
            self._hops(),
            model.num_layers,
            0.0,
            self.old_launches,
            batch * model.num_layers * model.hidden_size / HIDDEN_UNIT,
            self.messages,
            0.0,
        )

    def prefill(self, bucket: int, prompts: int = 1) -> Work:
        """`prompts` prompts, each padded to `bucket` tokens, encoded together; Neuron encodes them one by one."""
        model, tokens = self.model, prompts * bucket
        weights = self.weights_read(tokens)
        width = WEIGHT_BYTES[self.runtime.weight_dtype]
        return (
            self.matmul_flops(tokens, prompts) * self.flop_s,
            self.attention_flops(prompts * float(bucket) * bucket) * self.flop_s,
            (weights * width + self.kv_bytes(tokens, self.core.kv_heads)) * self.byte_s,
            weights if width == 1 else 0.0,
            0.0,
            0.0,
            self._link_s(tokens),
            self._hops(),
            0.0,
            model.num_layers,
            self.old_launches,
            0.0,
            self.messages,
            1.0,
        )

    def _link_s(self, tokens: int) -> float:
        """Seconds at the links' peak. A message occupies every link on its way, so hops multiply bytes."""
        return self.link_bytes(tokens) * (1 + self.hops) * self.link_byte_s

    def _hops(self) -> float:
        """Hops one after another: two all-reduces a layer, each a reduce and a broadcast."""
        return 4 * self.model.num_layers * self.hops
