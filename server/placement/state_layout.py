"""Layout of layers that keep a state: columns of their activations on a core, and the slots of sequences' states."""

from __future__ import annotations

from dataclasses import dataclass

from ..device.layout import FLOAT32_BYTES, K_MULTIPLE, N_TILE, round_up, vector_bytes
from ..device.state_layout import convolution_state_bytes, recurrence_scratch_bytes, recurrent_state_bytes
from ..errors import DeviceError
from ..models.spec import ModelSpec
from ..models.state_layer import Mamba2Spec, ShortConvSpec, StateMixer
from .core_share import CoreShare
from .shard import ShardSpec

TEXT_SLOTS = 8  # slots for texts that are encoded between the steps of generation, and for warm-up


def num_state_slots(model: ModelSpec, max_num_seqs: int, num_drafts: int = 0) -> int:
    """Return the slots: the null slot, for each sequence its own and one for a snapshot, and those of a step's drafts.

    Returns 0 without state layers.
    """
    return 0 if model.state_mixer is None else 1 + 2 * max_num_seqs + num_drafts


def stored_slots(model: ModelSpec, max_num_seqs: int, num_drafts: int = 0) -> int:
    """Return the slots in memory: those of sequences, then those of texts."""
    slots = num_state_slots(model, max_num_seqs, num_drafts)
    return slots + min(TEXT_SLOTS, max_num_seqs) if slots else 0


@dataclass(frozen=True, slots=True)
class StateWidths:
    """Columns of one mixer's activations on a core, in elements; the same on every core, padding included."""

    heads: int  # value heads; units of channels of a short convolution
    values: int
    keys: int  # of all key heads
    channels: int  # of the convolution
    projected: int  # row of the projection: channels, then z and gates; or b, c and x
    gates: int  # row of a projection of gates alone, 0 = none
    mixed: int  # row of the output

    @classmethod
    def of(cls, mixer: StateMixer, shard: ShardSpec) -> StateWidths:
        """Return the widths. Raises DeviceError where cores would share a group of normed columns unevenly."""
        values, heads = shard.size(mixer.value), shard.units(mixer.value)
        mixed, channels = round_up(values, K_MULTIPLE), sum(shard.size(axis) for axis in mixer.convolved)
        if isinstance(mixer, ShortConvSpec):
            return cls(heads, values, 0, channels, round_up(3 * values, N_TILE), 0, mixed)
        own_gates, gates = (heads, 0) if isinstance(mixer, Mamba2Spec) else (0, round_up(2 * heads, N_TILE))
        _require_whole_groups(mixer, shard.tp)
        projected = round_up(channels + values + own_gates, N_TILE)
        return cls(heads, values, shard.size(mixer.key), channels, projected, gates, mixed)


def _require_whole_groups(mixer: StateMixer, tp: int) -> None:
    if isinstance(mixer, Mamba2Spec) and mixer.norm != "none":
        groups = mixer.num_groups
        if max(groups, tp) % min(groups, tp):
            limit = f"it must divide the {groups} groups of columns that Mamba-2 norms together, or be a multiple"
            raise DeviceError(f"tensor_parallel_size is {tp}: {limit}")


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of layers with a state on one core: of a step's buffers, and of one slot of all layers."""

    projected: int
    gates: int
    convolved: int
    mixed: int
    mixed_panels: int
    key_heads: int  # the key head of each value head (int32)
    scratch: int  # of one worker
    slot: int
    offsets: tuple[tuple[int, int], ...]  # in a slot, of each layer: its convolution's state and its recurrent state
    slots: int  # number of slots in memory

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, rows: int, cell_bytes: int, slots: int) -> StateSizes | None:
        """Return the sizes for steps of `rows` rows and that many slots; None for a model without such layers."""
        mixer = model.state_mixer
        if mixer is None:
            return None
        widths = StateWidths.of(mixer, shard)
        convolution, recurrent = state_bytes(mixer, widths)
        offsets, end = [], 0
        for layer in model.layers:
            offsets.append((end, end + convolution))
            end += 0 if layer.state is None else convolution + recurrent
        return cls(
            projected=rows * widths.projected * FLOAT32_BYTES,
            gates=rows * widths.gates * FLOAT32_BYTES,
            convolved=rows * widths.channels * FLOAT32_BYTES,
            mixed=rows * widths.mixed * FLOAT32_BYTES,
            mixed_panels=rows * widths.mixed * cell_bytes,
            key_heads=vector_bytes(widths.heads),
            scratch=0 if isinstance(mixer, ShortConvSpec) else recurrence_scratch_bytes(mixer.key.unit_size),
            slot=end,
            offsets=tuple(offsets),
            slots=slots,
        )

    @property
    def own(self) -> int:
        """Bytes of the activations of each core."""
        return self.projected + self.gates + self.convolved + self.mixed + self.mixed_panels


def state_bytes(mixer: StateMixer, widths: StateWidths) -> tuple[int, int]:
    """Return the bytes of one layer's state on a core: of its convolution, and of its recurrence."""
    convolution = convolution_state_bytes(widths.channels, mixer.taps)
    if isinstance(mixer, ShortConvSpec):
        return convolution, 0
    return convolution, recurrent_state_bytes(widths.heads, mixer.key.unit_size, mixer.value.unit_size)


def state_layers(model: ModelSpec) -> int:
    """Return the number of layers that keep a state."""
    return sum(layer.state is not None for layer in model.layers)


def core_slot_bytes(model: ModelSpec, share: CoreShare, cell_bytes: int) -> int:
    """Return the bytes of a slot on the accelerator: convolutions in the model's type, recurrent states in float32.

    States of transformers' classes have these types (`mamba_ssm_cache_dtype`, and float32 in the gated delta rule).
    """
    mixer = model.state_mixer
    if mixer is None:
        return 0
    channels = sum(share.size(axis) for axis in mixer.convolved)
    recurrent = 0 if isinstance(mixer, ShortConvSpec) else share.size(mixer.value) * mixer.key.unit_size
    return state_layers(model) * ((mixer.taps - 1) * channels * cell_bytes + recurrent * FLOAT32_BYTES)


def key_heads(mixer: StateMixer, shard: ShardSpec, core: int) -> list[int]:
    """Return the local key head of each local value head of `core`; 0 for an empty slot."""
    heads = shard.of_heads(mixer.value.heads)
    ranges = heads.q_per_kv(core)
    slots = range(heads.heads_per_core)
    return [next((key for key, (begin, end) in enumerate(ranges) if begin <= slot < end), 0) for slot in slots]
