"""The memory that layers with experts work in, allocated as server/placement/expert_sizes.py counts it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronserve.server.device.core import NeuronCore
from neuronserve.server.device.hbm import Buffer
from neuronserve.server.placement.expert_sizes import INDEX_BYTES, ExpertSizes


class ExpertBuffers:
    """What all experts share is on core 0; what they compute is on each core that has a part of all, or on core 0."""

    def __init__(self, cores: Sequence[NeuronCore], sizes: ExpertSizes, per_token: int) -> None:
        """Raises HostMemoryError when the host cannot map the buffers."""
        self.sizes = sizes

        def once(name: str, num_bytes: int) -> Buffer:
            return cores[0].allocate("activations", f"experts' {name}", num_bytes)

        def on_each(name: str, num_bytes: int) -> tuple[Buffer, ...]:
            return tuple(core.allocate("activations", f"experts' {name}", num_bytes) for core in cores[: sizes.copies])

        self.read, self.weighed = once("input", sizes.read), once("weighted inputs", sizes.weighed)
        self.logits = once("logits", sizes.logits)
        self.chosen, self.slots, self.tokens = (
            once(name, sizes.choices) for name in ("choices", "rows of choices", "tokens of choices")
        )
        self.weights, self.gates = once("weights", sizes.weights), once("gates", sizes.gates)
        self.counts, self.groups = once("counts", sizes.counts), once("groups", sizes.groups)
        self.routed, self.routed_scales = once("panels", sizes.routed), once("row scales", sizes.row_scales)
        self.activated = on_each("activated", sizes.activated)
        self.activated_panels = on_each("activated panels", sizes.activated_panels)
        self.activated_scales = on_each("activated row scales", sizes.row_scales)
        self.outputs = on_each("outputs", sizes.outputs)
        choices = np.arange(sizes.choices // INDEX_BYTES)
        self.tokens.array(np.int64, choices.size)[:] = choices // per_token
