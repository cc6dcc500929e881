"""How many slots fit: the ledger's arithmetic (server/device/footprint.py) for a batch of full compiled slots.

Formulas live there; here they are asked once for each degree, weight type and batch, whatever the part.
"""

from __future__ import annotations

from server.config import ModelSpec, Quantization
from server.device.footprint import Footprint, ServingShape, StepLimits
from server.planner.plan_options import Buckets, WeightDtype

BLOCK_SIZE = 32  # the server's default
QUANTIZATION: dict[WeightDtype, Quantization | None] = {
    "bfloat16": None,
    "int8": "int8-weight-only",
    "fp8": "fp8",
}


class Memory:
    """Bytes on the fullest core for one model and one pair of buckets. Answers are kept."""

    def __init__(self, model: ModelSpec, buckets: Buckets) -> None:
        self._model, self._buckets = model, buckets
        self._known: dict[tuple[int, WeightDtype, int], int] = {}

    def needed_bytes(self, tp: int, dtype: WeightDtype, batch: int) -> int:
        """Everything on the fullest core with `batch` slots of the compiled length."""
        key = (tp, dtype, batch)
        if key not in self._known:
            footprint = Footprint.of(self._model, tp, self._shape(dtype, batch))
            num_blocks = batch * -(-self._buckets.decode // BLOCK_SIZE) + 1  # and the null block
            self._known[key] = sum(footprint.with_kv(num_blocks).values())
        return self._known[key]

    def _shape(self, dtype: WeightDtype, batch: int) -> ServingShape:
        """The largest step is a whole prompt in its bucket, or one token of every slot."""
        limits = StepLimits(num_tokens=max(self._buckets.prefill, batch), num_samples=batch, num_workers=1)
        return ServingShape("bfloat16", self._buckets.decode, BLOCK_SIZE, limits, QUANTIZATION[dtype])
