"""The accelerator's account: bytes of each NeuronCore that NxD Inference and the runtime use for a model.

Formulas only. The same lines decide before loading whether a model fits, are entered in the server's ledger, and limit
the KV blocks. The host memory of the emulator is in host_footprint.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import LoraConfig
from ..config.formats import (
    DEFAULT_GROUPS,
    Dtype,
    KVCacheDtype,
    Quantization,
    WeightFormats,
    WeightGroups,
)
from ..device.attention_layout import CHUNK
from ..device.layout import round_up
from ..device.ledger import MIB, MemoryLedger, Use
from ..host.row_shares import MOST_ROW_SHARES
from ..models.spec import ModelSpec
from ..models.vision import MAX_PATCHES
from .cache_layout import KV_CELL_BYTES, SCALE_BYTES, layers_per_slot
from .core_share import (
    DTYPE_BYTES,
    CoreShare,
    activation_bytes,
    lora_bytes,
    score_bytes,
    undivided_bytes,
    weight_bytes,
)
from .kv_groups import KVGroups
from .runtime_memory import Graphs, Line
from .shard import ShardSpec
from .state_layout import core_slot_bytes, num_state_slots

# All graphs of a core share a scratchpad, which grows by pages of 512 MiB by default (device-memory.rst). Published are
# 512 with one sequence (transformers-neuronx #49 and #92) and 1,024 with 32 (optimum-neuron 6373c379), so several
# sequences are charged a page more: a step that one account shows, no formula. Newer runtimes have pages of 64 MiB,
# without a published figure.
SCRATCHPAD_PAGE_BYTES = 512 * MIB
PATCHES_OF_A_WINDOW = 16  # at least, on average: a vision encoder's windows are whole but at two edges
GRAPHS = 2  # of prompts and of decode; more buckets add some, of which no account is published


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of the largest step of a program."""

    num_tokens: int
    num_samples: int
    num_workers: int  # threads of the emulator
    num_drafts: int = 0  # of the samples, most that follow a draft

    @property
    def num_seqs(self) -> int:
        """Number of sequences."""
        return self.num_samples - self.num_drafts

    @property
    def num_scratches(self) -> int:
        """Number of scratch areas of kernels: one for each worker, or for each share of a step's rows."""
        return max(self.num_workers, MOST_ROW_SHARES)

    def num_text_blocks(self, block_size: int) -> int:
        """Return the blocks for keys of the texts of the largest step; each text starts a new block."""
        return self.num_tokens // block_size + self.num_samples


@dataclass(frozen=True, slots=True)
class ServingShape:
    """All that decides the memory of a deployment besides the model and the accelerator."""

    dtype: Dtype
    max_model_len: int
    block_size: int
    limits: StepLimits
    quantization: Quantization | None = None
    modules_to_not_convert: tuple[str, ...] = ()
    kv_cache_dtype: KVCacheDtype | None = None  # None = dtype
    groups: WeightGroups = DEFAULT_GROUPS
    lora: LoraConfig | None = None  # None: no adapters
    wide_modules: frozenset[str] = frozenset()
    from_values: bool = True  # see WeightFormats
    fills_first_core: bool = False  # see Stack
    draft: tuple[ModelSpec, ServingShape] | None = None  # a model that drafts for this one, and its passes
    is_draft: bool = False  # its keys and values are beside another model's, whose group keeps all tokens

    @property
    def kv_dtype(self) -> KVCacheDtype:
        return self.kv_cache_dtype or self.dtype

    @property
    def formats(self) -> WeightFormats:
        return WeightFormats(
            self.dtype,
            self.quantization,
            self.modules_to_not_convert,
            self.from_values,
            self.groups,
            self.wide_modules,
        )

    @property
    def cell_bytes(self) -> int:
        """Largest size of one element of a panel."""
        return DTYPE_BYTES[self.dtype]

    def of_source(self, encoder: ModelSpec) -> ServingShape:
        """Return the shape of the passes of a decoder's `encoder`: those of one step, or one of the longest text."""
        tokens = max(self.limits.num_tokens, encoder.max_position)
        limits = replace(self.limits, num_tokens=tokens, num_samples=0)
        return replace(self, max_model_len=encoder.max_position, limits=limits, kv_cache_dtype=None)

    def num_source_blocks(self, encoder: ModelSpec) -> int:
        """Return the blocks for one layer's keys of the encoder in the largest step; each text starts a new block."""
        return self.of_source(encoder).limits.num_tokens // self.block_size + self.limits.num_samples

    def num_positions(self, model: ModelSpec) -> int:
        """Return the rows of rotary tables: for each position, and for tokens of pictures that turn by their place."""
        turns = any(rope is not None and rope.sections for rope in model.distinct_ropes)
        return self.max_model_len + (self.limits.num_tokens if model.vision is not None and turns else 0)

    def kv_groups(self, model: ModelSpec, tp: int) -> KVGroups:
        """Return how the layers of `model` on `tp` cores share the blocks of the KV cache."""
        sizes = self.max_model_len, self.block_size, self.max_model_len if self.is_draft else self.limits.num_tokens
        if len(model.attentions) == 1:
            return KVGroups.of(model, *sizes)
        return KVGroups.of(
            model, *sizes, layers_per_slot(model, ShardSpec.of(model, tp), self.kv_dtype, self.block_size)
        )


@dataclass(frozen=True, slots=True)
class Footprint:
    """Entries of the cores without KV, and the bytes of each KV block on a core.

    Under optimum-neuron the first core of a group has `first` beside the `lines` of every core.
    """

    lines: tuple[Line, ...]
    first: tuple[Line, ...]
    kv_block: int
    min_blocks: int  # one sequence of the full length with its encoding, and the null block
    groups: KVGroups
    draft_block: int = 0  # bytes of `kv_block` that are a draft model's

    @classmethod
    def of(cls, model: ModelSpec, tp: int, shape: ServingShape, lnc: int = 1) -> Footprint:
        """`lnc`: physical cores in one of the `tp` logical cores. Raises DeviceError when `tp` is below 1."""
        share, source = CoreShare.of(model, tp), model.source
        graphs = Graphs(GRAPHS, model.num_layers, tp, lnc)
        weights = weight_bytes(model, tp, shape.formats)
        draft = None if shape.draft is None else cls.of(shape.draft[0], tp, shape.draft[1], lnc)
        lines = (
            Line("weights", "weights", weights),
            *(() if draft is None else (Line("weights", "draft model", draft.fixed["weights"]),)),
            *_adapters(model, tp, shape),
            *_states(model, share, shape),
            *_scratchpad(model, share, shape, lnc),
            *graphs.lines(weights),
            *(() if source is None else Graphs(1, source.num_layers, tp, lnc).lines(weights)),
        )
        seeing = vision_lines(model, shape)
        undivided = undivided_bytes(model, tp, shape.formats) if shape.fills_first_core else 0
        whole = Line("weights", "undivided embedding and output layer", undivided)
        first = (*seeing, *((whole, *graphs.first_lines(undivided)) if undivided else ()))
        cell = KV_CELL_BYTES[shape.kv_dtype]
        scale = SCALE_BYTES if cell == 1 else 0
        rows = ((each, share.of_heads(each.heads).kv * (each.head_dim * cell + scale)) for each in model.attentions)
        layer = max(each.num_tensors * row for each, row in rows)
        groups = shape.kv_groups(model, tp)
        block = groups.block_layers * layer * shape.block_size
        drafts, longest = 0 if draft is None else draft.kv_block, groups.blocks_of(shape.max_model_len)
        return cls(lines, first, block + drafts, longest + 1, groups, drafts)

    def lines_of(self, core: int) -> tuple[Line, ...]:
        """Return the entries of a core, counted from 0 in its group."""
        return self.lines if core else (*self.lines, *self.first)

    @property
    def fixed(self) -> dict[Use, int]:
        """Bytes by use of every core, without KV."""
        return _by_use(self.lines)

    def of_core(self, core: int, num_blocks: int) -> dict[Use, int]:
        """Return bytes by use of a core, counted from 0 in its group, with `num_blocks` KV blocks."""
        uses = _by_use(self.lines_of(core))
        return {**uses, "kv": uses.get("kv", 0) + num_blocks * self.kv_block}

    def with_kv(self, num_blocks: int) -> dict[Use, int]:
        """Return bytes by use of the first core, which is the fullest, with `num_blocks` KV blocks."""
        return self.of_core(0, num_blocks)

    def max_blocks(self, budget_bytes: int) -> int:
        """Return the number of KV blocks that fit beside the entries of the first core; may be negative."""
        return (budget_bytes - sum(line.num_bytes for line in self.lines_of(0))) // self.kv_block

    def fits(self, budget_bytes: int) -> bool:
        """Return whether the model can serve one sequence of the full length."""
        return self.max_blocks(budget_bytes) >= self.min_blocks

    def enter(self, ledger: MemoryLedger, num_blocks: int) -> None:
        """Enter all lines on every core of `ledger`. Raises DeviceMemoryError when they do not fit."""
        for core in range(ledger.num_cores):
            own = Line("kv", "blocks", num_blocks * (self.kv_block - self.draft_block))
            beside = Line("kv", "draft model's part of the blocks", num_blocks * self.draft_block)
            for line in (*self.lines_of(core), own, *((beside,) if self.draft_block else ())):
                ledger.reserve(core, *line)


def vision_shape(model: ModelSpec, shape: ServingShape) -> ServingShape:
    """Return the shape of a vision encoder's step: the largest picture, or one whose vectors fill a context."""
    assert model.vision is not None
    patches = min(MAX_PATCHES, shape.max_model_len * model.vision.merge**2)
    own = ServingShape(shape.dtype, patches, CHUNK, StepLimits(patches, 0, shape.limits.num_workers))
    if shape.quantization != "int8" or not shape.from_values:  # others compute no faster, or less exactly
        return own
    return replace(own, quantization="int8", modules_to_not_convert=shape.modules_to_not_convert)


def vision_blocks(patches: int) -> tuple[int, int]:
    """Return the blocks for keys and the sequences of a vision encoder's largest step, each in blocks of its own."""
    sequences = patches // PATCHES_OF_A_WINDOW + 1
    return patches // CHUNK + sequences, sequences


def vision_lines(model: ModelSpec, shape: ServingShape) -> tuple[Line, ...]:
    """Return the entries of a vision encoder on the first core, which computes it for all."""
    if model.vision is None:
        return ()
    encoder, own = model.vision_encoder, vision_shape(model, shape)
    share, beside = CoreShare.of(encoder, 1), model.vision.num_weights * DTYPE_BYTES[shape.dtype]
    return (
        Line("weights", "vision encoder", weight_bytes(encoder, 1, own.formats) + beside),
        Line("scratchpad", "vision encoder", activation_bytes(encoder, share, own.max_model_len, 0, shape.dtype)),
    )


def _by_use(lines: tuple[Line, ...]) -> dict[Use, int]:
    uses: dict[Use, int] = {}
    for line in lines:
        uses[line.use] = uses.get(line.use, 0) + line.num_bytes
    return uses


def _scratchpad(model: ModelSpec, share: CoreShare, shape: ServingShape, lnc: int) -> tuple[Line, ...]:
    limits = shape.limits
    scores = score_bytes(model, share, limits.num_tokens, lnc)
    activations = activation_bytes(model, share, limits.num_tokens, limits.num_samples, shape.dtype)
    if model.source is not None:  # its graph has the same memory, at another time
        longest = model.source.max_position
        scores = max(scores, score_bytes(model.source, share, longest, lnc))
        activations = max(activations, activation_bytes(model.source, share, longest, 0, shape.dtype))
    several = SCRATCHPAD_PAGE_BYTES if limits.num_samples > 1 else 0
    return (
        Line("scratchpad", "attention scores", scores),
        Line("scratchpad", "activations", round_up(scores + activations, SCRATCHPAD_PAGE_BYTES) - scores + several),
    )


def _states(model: ModelSpec, share: CoreShare, shape: ServingShape) -> tuple[Line, ...]:
    """Return the entry of sequences' states and of snapshots of them."""
    slots = num_state_slots(model, shape.limits.num_seqs, shape.limits.num_drafts)
    slot = core_slot_bytes(model, share, DTYPE_BYTES[shape.dtype])
    return (Line("kv", "states", slots * slot),) if slots else ()


def _adapters(model: ModelSpec, tp: int, shape: ServingShape) -> tuple[Line, ...]:
    """Return the entry of all loadable adapters and of each slot's gathered adapter, at the largest rank."""
    if shape.lora is None:
        return ()
    rank, slots = shape.lora.max_lora_rank, shape.limits.num_samples
    return (Line("weights", "LoRA adapters", lora_bytes(model, tp, rank, shape.lora.max_loras, slots)),)


def encoder_lines(
    model: ModelSpec, tp: int, formats: WeightFormats, texts: tuple[int, int], lnc: int = 1
) -> tuple[Line, ...]:
    """Return the entries of each core for a pass of an encoder over `texts`: their number, and the tokens of each."""
    count, tokens = texts
    share = CoreShare.of(model, tp)
    scores = count * score_bytes(model, share, tokens, lnc)
    activations = activation_bytes(model, share, count * tokens, 0, formats.dtype)
    weights = weight_bytes(model, tp, formats)
    return (
        Line("weights", "weights", weights),
        Line("scratchpad", "attention scores and activations", round_up(scores + activations, SCRATCHPAD_PAGE_BYTES)),
        *Graphs(1, model.num_layers, tp, lnc).lines(weights),
    )


def encoder_bytes(model: ModelSpec, tp: int, formats: WeightFormats, texts: tuple[int, int], lnc: int = 1) -> int:
    """Return the bytes on each core for a pass of an encoder over `texts`: their number, and the tokens of each."""
    return sum(line.num_bytes for line in encoder_lines(model, tp, formats, texts, lnc))
