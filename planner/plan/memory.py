"""Memory of the cores for a batch of full slots, and memory of the host that loads the checkpoint.

Bytes on cores follow the ledger's arithmetic (server/placement/footprint.py); each degree, weight type and batch is
computed once for all instances with the same cores.

NxD Inference reads a whole checkpoint into the memory of the host before it divides the weights over the cores, unless
they were divided beforehand (`save_sharded_checkpoint`); then each core's share is read separately: contrib/models/
Trinity/README.md of github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54b (2026-07-28).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...server.cost.shape import STORED_BYTES
from ...server.cost.stacks import STACKS
from ...server.device.instances import Instance
from ...server.device.ledger import Use
from ...server.host.memory import GIB
from ...server.models.layer import AttentionSpec
from ...server.models.spec import ModelSpec
from ...server.models.stages import stage_layers
from ...server.models.tensors import num_params
from ...server.placement.core_share import lora_bytes
from ...server.placement.footprint import Footprint, ServingShape, StepLimits
from .options import Buckets, KVDtype, PlanOptions
from .weight_types import QUANTIZATION, WeightDtype

BLOCK_SIZE = 32  # the server's default


@dataclass(frozen=True, slots=True)
class Beside:
    """Contents of the cores beside the model itself."""

    draft: ModelSpec | None = None  # in bfloat16, with a cache as long as the model's
    tokens_per_slot: int = 1  # of a decode step
    stored_loras: int = 0
    lora_rank: int = 0
    fills_first_core: bool = False  # see Stack
    kv_cache_dtype: KVDtype = "bfloat16"

    @classmethod
    def of(cls, options: PlanOptions, draft: ModelSpec | None) -> Beside:
        guesses = 0 if options.speculation is None else options.speculation.num_tokens
        fills_first = options.stack is not None and STACKS[options.stack].fills_first_core
        kv_dtype = options.kv_cache_dtype
        return cls(draft, guesses + 1, options.max_loras, options.lora_rank, fills_first, kv_dtype)


class Memory:
    """Bytes on each core for one model and one pair of buckets; each is computed once."""

    def __init__(self, model: ModelSpec, buckets: Buckets, beside: Beside | None = None) -> None:
        self._model, self._buckets, self._beside = model, buckets, beside or Beside()
        self._needed: dict[tuple[int, WeightDtype, int, int, int], int] = {}

    def needed_bytes(self, tp: int, dtype: WeightDtype, batch: int, stages: int = 1, lnc: int = 1) -> int:
        """Return all bytes on a core of `lnc` physical ones with `batch` slots of the compiled length.

        Of several stages, the one with the most layers counts, as if it had the embedding and the output layer, and
        among equally many layers those that attend most.
        """
        key = (tp, dtype, batch, stages, lnc)
        if key not in self._needed:
            beside, longest = self._beside, _longest_stage(self._model, stages)
            uses = self._uses(longest, key)
            needed = sum(uses.values())
            if beside.draft is not None:
                draft = self._uses(_longest_stage(beside.draft, stages), (tp, "bfloat16", batch, stages, lnc))
                needed += draft["weights"] + draft["kv"]  # its graphs are those of the model: one program runs both
            if beside.lora_rank:
                needed += lora_bytes(longest, tp, beside.lora_rank, beside.stored_loras, batch)
            self._needed[key] = needed
        return self._needed[key]

    def _uses(self, stage: ModelSpec, key: tuple[int, WeightDtype, int, int, int]) -> dict[Use, int]:
        """Return the bytes of one stage by use."""
        tp, dtype, batch, _, lnc = key
        footprint = Footprint.of(stage, tp, self._shape(dtype, batch), lnc)
        # One prompt at a time also needs room for its chunk; `min_blocks` has this and the null block.
        decoding = footprint.groups.blocks_of(self._buckets.decode, self._beside.tokens_per_slot)
        return footprint.with_kv((batch - 1) * decoding + footprint.min_blocks)

    def _shape(self, dtype: WeightDtype, batch: int) -> ServingShape:
        """Return the shape whose largest step is a whole prompt in its bucket, or the tokens of all slots."""
        tokens = batch * self._beside.tokens_per_slot
        limits = StepLimits(num_tokens=max(self._buckets.prefill, tokens), num_samples=tokens, num_workers=1)
        fills_first = self._beside.fills_first_core
        return ServingShape(
            "bfloat16",
            self._buckets.decode,
            BLOCK_SIZE,
            limits,
            QUANTIZATION[dtype],
            fills_first_core=fills_first,
            kv_cache_dtype=self._beside.kv_cache_dtype,
        )


def _longest_stage(model: ModelSpec, stages: int) -> ModelSpec:
    count = max(stage_layers(model.num_layers, stages))
    attends = [isinstance(layer.mixer, AttentionSpec) for layer in model.layers]
    first = max(range(model.num_layers - count + 1), key=lambda start: sum(attends[start : start + count]))
    return model.with_layers(model.layers[first : first + count])


# Host memory for each byte of a checkpoint. The only published figure is of a 12 GB model whose loading was killed at
# 15.3 GB, so it takes more. An instance is refused only if its host cannot hold one copy.
KILLED_SHARE = 15.3 / 12


def checkpoint_bytes(model: ModelSpec, dtype: WeightDtype) -> int:
    """Return the bytes of one copy of the weights in the files of a checkpoint of this type."""
    return int(num_params(model) * STORED_BYTES[dtype])


def why_not_loaded(model: ModelSpec, dtype: WeightDtype, part: Instance, count: int, options: PlanOptions) -> str:
    """Return why the hosts of `count` instances cannot load a model, each its own layers; empty if they can."""
    needed = checkpoint_bytes(model, dtype) / count
    if options.save_sharded_checkpoint or needed <= part.memory_per_host_bytes:
        return ""
    return (
        f"loading reads {needed / GIB:.1f} GiB of weights into the {part.memory_per_host_bytes / GIB:.0f} GiB of the "
        "host, unless they were sharded elsewhere (--save-sharded-checkpoint)"
    )


def tight_host(model: ModelSpec, dtype: WeightDtype, part: Instance, count: int, options: PlanOptions) -> str:
    """Return why hosts that hold one copy of the weights may lack the further memory of loading; empty if not."""
    needed = checkpoint_bytes(model, dtype) / count
    if options.save_sharded_checkpoint or needed * KILLED_SHARE <= part.memory_per_host_bytes:
        return ""
    return (
        f"the host of {part.name} may be too small to load {needed / 1e9:.1f} GB of weights: loading 12 GB was killed "
        "at 15.3 GB on a host of 16 GiB; sharded elsewhere (save_sharded_checkpoint), they loaded"
    )
