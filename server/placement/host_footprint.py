"""The host's account: memory of the emulator's process over all emulated cores.

Formulas only: packed weights, buffers of a step, partial sums of every core, tables, workers' scratch and the KV pool,
as server/engine/buffers.py and load/weights.py allocate them. The accelerator's account is in footprint.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config.formats import WeightFormats
from ..device.attention_layout import CHUNK
from ..device.core import HostUse
from ..device.hbm import ALIGNMENT
from ..device.layout import FLOAT32_BYTES, K_MULTIPLE, N_TILE, round_up, vector_bytes
from ..models.decoder import graphs
from ..models.layer import RopeSpec
from ..models.linear import Linear, Vector
from ..models.ops import Add, AddRows, LatentAttention, LayerNorm, Norm, NormOutput, Op, StreamNorm
from ..models.spec import ModelSpec
from ..models.stream_ops import ChangeStreams
from ..models.tensors import op_vectors
from ..models.vision import PRODUCT_ROWS
from .adapters import adapter_bytes
from .cache_layout import AttentionSizes, kv_layer_bytes
from .core_share import DTYPE_BYTES
from .expert_sizes import ExpertSizes
from .footprint import ServingShape, vision_blocks, vision_shape
from .latent_sizes import LatentSizes
from .matrices import PackedShape, Widths, stream_vector_size
from .shard import ShardSpec
from .sound_sizes import SoundSizes
from .state_layout import StateSizes, stored_slots


def packed_weight_bytes(model: ModelSpec, shard: ShardSpec, formats: WeightFormats) -> int:
    """Return the bytes of one core's packed matrices, and of the float32 vectors that only the first core has."""
    w = Widths.of(model, shard)
    embedding = 0 if model.is_tied else w.vocab * w.hidden * DTYPE_BYTES[formats.dtype]
    counted = [each for graph in graphs(model) for each in graph.counted(by_name=formats.goes_by_name)]
    experts = [(op, count) for op, count in counted if isinstance(op, Linear) and op.is_of_expert]
    others = [(op, count) for op, count in counted if not (isinstance(op, Linear) and op.is_of_expert)]
    own, rest = (sum(_op_bytes(op, w, shard, formats) * count for op, count in each) for each in (experts, others))
    return embedding + rest + own * shard.expert_tp // shard.tp


def _op_bytes(op: Op, widths: Widths, shard: ShardSpec, formats: WeightFormats) -> int:
    """Return the bytes of one op on the first core. Replicated vectors are padded to the rows' width."""
    match op:
        case Linear():
            shape = PackedShape.of(op, widths)
            return shape.num_bytes(formats) + (vector_bytes(shape.n) if op.has_bias else 0)
        case AddRows():
            return round_up(op.table.outputs.size, N_TILE) * widths.hidden * DTYPE_BYTES[formats.dtype]
        case LayerNorm(bias=Vector()) | StreamNorm(norm=LayerNorm(bias=Vector())):
            return 2 * vector_bytes(widths.hidden)
        case Norm() | LayerNorm() | StreamNorm() | NormOutput() | Add(norm=Norm()):
            return vector_bytes(widths.hidden)
        case ChangeStreams():
            return sum(vector_bytes(stream_vector_size(vector)) for vector in op_vectors(op))
        case LatentAttention():
            return sum(vector_bytes(round_up(vector.size, K_MULTIPLE)) for vector in op.vectors)
        case _:
            return sum(vector_bytes(shard.vector_size(vector)) for vector in op_vectors(op))


def _rope_bytes(rope: RopeSpec | None, head_dim: int, num_positions: int) -> int:
    rotary_dim = head_dim if rope is None else rope.rotary_dim(head_dim)
    return 2 * vector_bytes(num_positions * (rotary_dim // 2))


def _distance_bytes(shard: ShardSpec, model: ModelSpec, max_model_len: int) -> int:
    """Return the bytes of tables by distance, of the heads of all cores, with a chunk that kernels read beyond."""
    attention, heads = model.attention, shard.of_heads(model.attention.heads).heads_per_core
    column, tables = (attention.head_dim, 2 * model.num_layers) if attention.has_distance_rows else (1, 1)
    is_used = attention.num_distance_buckets > 0
    return is_used * shard.tp * tables * vector_bytes(heads * column * (2 * max_model_len + CHUNK))


@dataclass(frozen=True, slots=True)
class ActivationSizes:
    """Bytes of every buffer of a step. The host keeps one copy of values that are the same on all cores."""

    rows: int
    attention: AttentionSizes
    hidden: int
    input_width: int  # elements of a token's inputs of all layers
    streams: int  # float32 rows of all streams, where there are several
    gates: int  # of one core, float32 rows of gate and up, where gates are sparse
    layer_inputs: int  # float32 rows, and elements that kernels read beyond the last
    normed: int
    partial: int  # of one core and branch
    branches: int  # parallel branches whose partial sums are added together
    sampled: int
    logits: int  # of all cores
    rope_tables: int  # cos and sin of each rope
    other_tables: int  # temperatures of queries, unit weights of norms without weights
    head_groups: int  # of one core, the query range of each KV head (two int32), and slopes of query heads
    worker_scratch: int  # of one worker: attention rows, a normed row, or weights being widened to bfloat16
    qkv: int
    queries: int  # bfloat16 rows
    attended: int  # float32 rows
    attended_panels: int
    activated: int
    activated_panels: int
    row_scales: int
    experts: ExpertSizes | None
    latent: LatentSizes | None
    states: StateSizes | None  # of layers that keep a state
    head_squares: int  # of all cores, sums of squares of q and k, if norms are over all heads together

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, shape: ServingShape) -> ActivationSizes:
        w, limits, cell = Widths.of(model, shard), shape.limits, shape.cell_bytes
        rows, samples = round_up(limits.num_tokens, N_TILE), round_up(limits.num_samples, N_TILE)
        attention = AttentionSizes.of(model, shard, shape.max_model_len, limits.num_workers)
        experts = ExpertSizes.of(model, shard, shape)
        latent = LatentSizes.of(model, shard, shape)
        slots = stored_slots(model, limits.num_seqs, limits.num_drafts)
        states = StateSizes.of(model, shard, rows, cell, slots)
        others = (
            experts.width if experts else 0,
            latent.query_width if latent else 0,
            states.mixed // FLOAT32_BYTES // rows if states else 0,
        )
        input_width = round_up(model.input_size, K_MULTIPLE)
        longest_k = max(w.hidden, w.attended, w.intermediate, *others)
        floats = max(longest_k * FLOAT32_BYTES, 2 * N_TILE * longest_k * DTYPE_BYTES["bfloat16"])
        scratches = attention.worker_scratch, floats, states.scratch if states else 0
        return cls(
            rows=rows,
            attention=attention,
            hidden=rows * w.hidden * FLOAT32_BYTES,
            input_width=input_width,
            streams=rows * w.hidden * FLOAT32_BYTES * model.num_streams,
            gates=2 * rows * w.intermediate * FLOAT32_BYTES * model.has_sparse_gates,
            layer_inputs=(rows * input_width + K_MULTIPLE) * FLOAT32_BYTES * (input_width > 0),
            normed=rows * w.hidden * (FLOAT32_BYTES if experts else cell),  # a router reads float32
            partial=rows * w.hidden * FLOAT32_BYTES,
            branches=model.layers[0].num_branches,
            sampled=samples * w.hidden * cell,
            logits=samples * shard.tp * w.vocab * FLOAT32_BYTES,
            rope_tables=sum(_rope_bytes(*each, shape.num_positions(model)) for each in model.rotations),
            other_tables=len(model.temperatures) * vector_bytes(shape.num_positions(model))
            + sum(vector_bytes(round_up(size, K_MULTIPLE)) for size in model.unit_sizes)
            + _distance_bytes(shard, model, shape.max_model_len),
            head_groups=sum(vector_bytes(2 * each.kv_heads_per_core) for each in shard.heads)
            + sum(vector_bytes(shard.of_heads(heads).heads_per_core) for _, heads in model.slopes),
            worker_scratch=round_up(max(scratches), 64),
            qkv=rows * w.qkv * FLOAT32_BYTES,
            queries=rows * w.attended * DTYPE_BYTES["bfloat16"],
            attended=rows * w.attended * FLOAT32_BYTES,
            attended_panels=rows * w.attended * cell,
            activated=rows * w.intermediate * FLOAT32_BYTES,
            activated_panels=rows * w.intermediate * cell,
            row_scales=vector_bytes(max(rows, samples)),
            experts=experts,
            latent=latent,
            states=states,
            head_squares=vector_bytes(2 * rows * shard.tp * ("all_heads" in model.qk_norms)),
        )

    @property
    def shared(self) -> int:
        """Bytes of the activations that are stored once."""
        states = self.hidden + self.streams + self.layer_inputs + self.normed
        return states + self.row_scales + self.sampled + self.logits + self.head_squares

    def by_kind(self, tp: int) -> int:
        """Bytes of the buffers of experts and of latent attention over all cores."""
        latent = self.latent.total(tp) if self.latent else 0
        return latent + (self.experts.total if self.experts else 0)

    @property
    def own(self) -> int:
        """Bytes of the activations of each core."""
        attention = self.qkv + self.queries + self.attended + self.attended_panels
        states = self.states.own if self.states else 0
        return attention + self.gates + self.activated + self.activated_panels + self.row_scales + states


@dataclass(frozen=True, slots=True)
class HostFootprint:
    """Bytes over all cores of one engine without KV, and of each KV block. The bytes of weights are an upper bound."""

    fixed: dict[HostUse, int]
    kv_block: int
    kv_layer: int  # of a block, one layer

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, shape: ServingShape) -> HostFootprint:
        sizes, tp = ActivationSizes.of(model, shard, shape), shard.tp
        divided = round_up(sizes.attention.partials, ALIGNMENT) + sizes.attention.arrivals
        fixed: dict[HostUse, int] = {
            "weights": tp * packed_weight_bytes(model, shard, shape.formats),
            "activations": sizes.shared + tp * sizes.own + sizes.by_kind(tp),
            "partial_sums": tp * sizes.branches * sizes.partial,
            "workers": shape.limits.num_scratches * sizes.worker_scratch + divided,
            "adapters": 0,
            "tables": sizes.rope_tables + sizes.other_tables + tp * sizes.head_groups,
        }
        if sizes.states is not None:
            fixed["kv"] = tp * sizes.states.slots * sizes.states.slot
            fixed["tables"] += tp * sizes.states.key_heads
        if shape.lora is not None:
            fixed["adapters"] = adapter_bytes(model, shard, shape.lora, shape.cell_bytes, sizes.rows)
        layer = tp * kv_layer_bytes(model, shard, shape.kv_dtype, shape.block_size)
        if model.source is not None:
            _add_source(fixed, model.source, tp, shape)
        elif not (model.is_encoder or shape.is_draft):  # one layer's keys of texts that the engine also encodes
            texts = shape.limits.num_text_blocks(shape.block_size)
            fixed["activations"] += tp * round_up(layer // tp * texts, ALIGNMENT)
        fixed["activations"] += vision_bytes(model, shape)
        block = shape.kv_groups(model, tp).block_layers * layer
        if shape.draft is not None:
            drafting, passes = shape.draft
            draft = cls.of(drafting, ShardSpec.of(drafting, tp), passes)
            fixed = {use: fixed.get(use, 0) + draft.fixed.get(use, 0) for use in fixed | draft.fixed}
            block += draft.kv_block + shape.block_size  # and a byte for each position, whether it is computed
        return cls(fixed, block, layer)

    def total(self, num_blocks: int) -> int:
        """Return the bytes with `num_blocks` KV blocks."""
        return sum(self.fixed.values()) + num_blocks * self.kv_block


def _add_source(fixed: dict[HostUse, int], encoder: ModelSpec, tp: int, shape: ServingShape) -> None:
    """Add the bytes of an encoder beside its decoder, whose weights include the encoder's, and one layer's keys."""
    shard, own = ShardSpec.of(encoder, tp), shape.of_source(encoder)
    beside = HostFootprint.of(encoder, shard, own)
    for use in ("activations", "partial_sums", "workers", "tables"):
        fixed[use] += beside.fixed[use]
    sound = SoundSizes.of(encoder)
    fixed["activations"] += 0 if sound is None else sound.num_bytes(shape.dtype)
    fixed["activations"] += tp * round_up(beside.kv_layer // tp * shape.num_source_blocks(encoder), ALIGNMENT)


def vision_bytes(model: ModelSpec, shape: ServingShape) -> int:
    """Return the bytes of a vision encoder, the weights around its layers counted as float32; 0 without one."""
    if model.vision is None:
        return 0
    encoder, own = model.vision_encoder, vision_shape(model, shape)
    whole = HostFootprint.of(encoder, ShardSpec.of(encoder, 1), own)
    blocks, _ = vision_blocks(own.max_model_len)
    inputs, outputs = model.vision.product_widths
    around = model.vision.num_weights + PRODUCT_ROWS * (2 * inputs + outputs)
    return replace(whole, kv_block=whole.kv_layer).total(blocks) + around * FLOAT32_BYTES
