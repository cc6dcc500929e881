"""Memory of layers that keep a state: the slots of sequences' states, and a step's activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..device.core import NeuronCore
from ..device.hbm import Buffer
from ..host.address_map import ADDRESSES
from ..models.state_layer import ShortConvSpec, StateMixer
from ..placement.shard import ShardSpec
from ..placement.state_layout import StateSizes, StateWidths, key_heads


class StateBuffers:
    """Buffers on each core, and `slots`: the states of all layers in one slot after the other."""

    def __init__(self, cores: Sequence[NeuronCore], mixer: StateMixer, shard: ShardSpec, sizes: StateSizes) -> None:
        """Allocate the buffers. Raises HostMemoryError."""
        self.mixer, self.shard, self.sizes, self.widths = mixer, shard, sizes, StateWidths.of(mixer, shard)

        def on_each(name: str, num_bytes: int) -> tuple[Buffer, ...]:
            return tuple(core.allocate("activations", f"states' {name}", num_bytes) for core in cores)

        self.projected, self.gates = on_each("projections", sizes.projected), on_each("gates", sizes.gates)
        self.convolved, self.mixed = on_each("convolved", sizes.convolved), on_each("outputs", sizes.mixed)
        self.mixed_panels = on_each("output panels", sizes.mixed_panels)
        self.slots = tuple(core.allocate("kv", "states", sizes.slots * sizes.slot) for core in cores)
        for slots in self.slots:
            ADDRESSES.register("states of sequences", slots.bytes)
        self.key_heads = () if isinstance(mixer, ShortConvSpec) else tuple(self._key_heads(core) for core in cores)

    def _key_heads(self, core: NeuronCore) -> Buffer:
        values = np.array(key_heads(self.mixer, self.shard, core.index), np.int32)
        buffer = core.allocate("tables", "key heads", self.sizes.key_heads)
        buffer.array(np.int32, self.sizes.key_heads // values.itemsize)[: values.size] = values
        return buffer
