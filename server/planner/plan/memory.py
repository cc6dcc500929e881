"""Memory of a batch of full compiled slots, by the ledger's arithmetic (server/placement/footprint.py).

The formulas are there; here each degree, weight type and batch is computed once for all parts with the same cores.
"""

from __future__ import annotations

from dataclasses import replace

from server.config import Quantization
from server.cost.pipeline import stage_layers
from server.models.spec import ModelSpec
from server.placement.footprint import Footprint, ServingShape, StepLimits
from server.planner.plan.options import Buckets, WeightDtype

BLOCK_SIZE = 32  # the server's default
QUANTIZATION: dict[WeightDtype, Quantization | None] = {
    "bfloat16": None,
    "int8": "int8-weight-only",
    "fp8": "fp8",
}


class Memory:
    """Bytes on each core for one model and one pair of buckets; each is computed once."""

    def __init__(self, model: ModelSpec, buckets: Buckets) -> None:
        self._model, self._buckets = model, buckets
        self._needed: dict[tuple[int, WeightDtype, int, int, int], int] = {}

    def needed_bytes(self, tp: int, dtype: WeightDtype, batch: int, stages: int = 1, lnc: int = 1) -> int:
        """Bytes of everything on a core of `lnc` physical ones with `batch` slots of the compiled length.

        Of several stages that with the most layers, counted as if it had the embedding and the output layer.
        """
        key = (tp, dtype, batch, stages, lnc)
        if key not in self._needed:
            model = replace(self._model, num_layers=max(stage_layers(self._model.num_layers, stages)))
            footprint = Footprint.of(model, tp, self._shape(dtype, batch), lnc)
            num_blocks = batch * -(-self._buckets.decode // BLOCK_SIZE) + 1  # and the null block
            self._needed[key] = sum(footprint.with_kv(num_blocks).values())
        return self._needed[key]

    def _shape(self, dtype: WeightDtype, batch: int) -> ServingShape:
        """The largest step is a whole prompt in its bucket, or one token of every slot."""
        limits = StepLimits(num_tokens=max(self._buckets.prefill, batch), num_samples=batch, num_workers=1)
        return ServingShape("bfloat16", self._buckets.decode, BLOCK_SIZE, limits, QUANTIZATION[dtype])
