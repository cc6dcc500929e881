"""Records that kernels read from memory: named tuples of int64 words, and the byte offsets of their fields.

A kernel's operands are one record for each core, one after the other; the step is one record for all. `offsets(Record)`
is a Record whose fields hold their own byte offsets, so a kernel reads `load_i64(operands + AT.weights)`.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, TypeVar

Record = TypeVar("Record", bound=tuple[Any, ...])  # a NamedTuple class

WORD = 8


def offsets(record: type[Record]) -> Record:
    """Return a record with the byte offset of each field."""
    names = inspect.get_annotations(record)
    return record(*range(0, WORD * len(names), WORD))


def size_of(record: type[tuple[Any, ...]]) -> int:
    """Return the bytes of one record."""
    return WORD * len(inspect.get_annotations(record))


class StepRecord(NamedTuple):
    """Fields that change from step to step. Addresses are of int32 arrays; shapes in brackets."""

    num_tokens: int  # T, all sequences together
    num_seqs: int  # B
    num_samples: int  # S, rows whose logits are wanted
    num_tiles: int  # number of attention's entries
    token_ids: int  # [T]
    positions: int  # [T]
    slots: int  # [groups][T] block * block_size + offset
    sample_rows: int  # [S] row of each wanted token
    query_start: int  # [B + 1] first row of each sequence
    block_tables: int  # [groups][B, table_width]
    table_width: int
    tile_seq: int  # [tiles] sequence of each entry
    tile_row: int  # [tiles] its first row
    tile_split: int  # [tiles][3] partition of the keys or -1 for all, first slot of partial states, partitions
    counters: int  # of attention: number of items taken from each worker's share; int64, 64 bytes apart
    num_lora_groups: int  # G, groups of rows with one adapter
    lora_rows: int  # [T] rows with an adapter, group by group
    lora_groups: int  # [G][3] slot of the adapter, first and end of its rows in lora_rows
    token_types: int  # [T], for encoders
    slots_stride: int = 0  # bytes between the slots of two groups of layers
    tables_stride: int = 0  # bytes between the block tables of two groups
    state_read: int = 0  # [B] slot of each sequence's state before the step; slot 0 reads as zeros
    state_write: int = 0  # [T] slot of the sequence's state after each row; a later row of the same slot replaces it
    rope_rows: int = 0  # [T] row of the rotary tables: the position, unless the token is of a picture or follows one
    vectors: int = 0  # int64 [T] addresses of the vectors of tokens of pictures, 0 for others; 0 = there are none
    ends: int = 0  # [T] end of the keys that a token sees, in layers with `sees_ahead`; 0 = none sees keys behind it


STEP = offsets(StepRecord)
STEP_BYTES = size_of(StepRecord)  # a second record may follow, of the same rows in cross attention


class MatmulOperands(NamedTuple):
    """One core's share of `output[:rows, :16 * n_tiles] = activation(activations @ weights + bias)`.

    Some formats scale the product; a gated product stores `activation(gate) * up`.
    """

    activations: int  # panels [rows/16][K/k_tile][16][k_tile]
    row_scales: int  # float32 [rows]: int8 activations only
    weights: int  # tiles, see the matmul kernels
    column_scales: int  # float32 [N]: 8-bit weights; [N/16][groups][16] of weights in groups: group_lanes.py
    column_sums: int  # int32 [N], sum over k of the int8 weights, for unsigned activations; shifts of 4-bit weights
    output: int  # float32 rows, `ldc` apart, or panels `ldc` wide: see epilogue.py
    n_tiles: int  # N / 16
    k_tiles: int  # K / k_tile of the format
    ldc: int  # columns of a whole output row
    rows_field: int  # byte offset in the step record of the number of rows
    scratch: int  # one area of `scratch_stride` bytes for each worker: weights converted to bfloat16
    scratch_stride: int
    activation: int  # index in epilogue.ACTIVATIONS
    bias: int = 0  # float32 [N] or 0
    group_shift: int = 0  # 4-bit weights only: 32 << group_shift neighbours in k share a scale
    groups: int = 0  # address of a GroupTable with the rows of each matrix; 0: every core has one matrix for all rows
    matrices: int = 1  # records of one core: one for each matrix if there are groups


class GroupTable(NamedTuple):
    """Header of runs of neighbouring rows with one of several matrices each; that many Groups follow."""

    num_groups: int


class Group(NamedTuple):
    """Rows of one matrix."""

    matrix: int
    begin: int  # a multiple of 32, the tile unit's block
    end: int


class EmbedOperands(NamedTuple):
    """One core's share of the embedding table: `hidden[t] = table[token_ids[t]] * scale`."""

    table: int  # this core's vocabulary rows
    scales: int  # of each row or group, as in MatmulOperands
    hidden: int  # float32 [T, width], the same address on every core
    vocab_per_core: int
    width: int  # hidden size, a multiple of 32
    scale: int  # bits of a float32, 1.0 = none
    shifts: int = 0  # as MatmulOperands.column_sums: 4-bit tables only
    group_shift: int = 0  # as in MatmulOperands


class AddRowsOperands(NamedTuple):
    """Operands of `hidden[t] += table[index[t] + first]`: learned positions or token types, on one core for all."""

    table: int  # rows as wide as those of `hidden`
    hidden: int  # float32 [T, width]
    width: int
    index_field: int  # byte offset in the step record of the address of int32 [T]; 0: row `first` for all
    first: int


class NormOperands(NamedTuple):
    """All-reduce, residual and norm: `hidden += sum(partials) * scale`, `panels = norm(hidden)`.

    The norm is `x / rms(x) * weight`, or if it is centered `(x - mean(x)) / deviation(x) * weight + shift`. With a
    `post_weight`, `sum(partials) / rms(sum(partials)) * post_weight * scale` is added to `hidden`.
    """

    hidden: int  # float32 [T, width]
    partials: int  # float32 [num_partials][T, width], `partial_stride` bytes apart
    num_partials: int  # number of cores, times parallel branches; 0 before the first layer
    partial_stride: int
    post_weight: int  # float32 [width] or 0, and 0 where there are no partials
    branch_scale: int  # bits of a float32: `scale`
    weight: int  # float32 [width], or 0: panels of `hidden` itself
    shift: int  # float32 [width] or 0
    is_centered: int  # 1: LayerNorm, 0: RMSNorm
    stays: int  # 1: the normed row replaces that in `hidden`
    panels: int  # output, in the format of the matmul that reads them
    row_scales: int  # output, float32 [T]: int8 panels only
    scratch: int  # float32 [width] for each worker, `scratch_stride` bytes apart
    scratch_stride: int
    width: int  # a multiple of 64, zero beyond `size`
    size: int  # hidden size
    eps: int  # bits of a float32
    rows_field: int  # byte offset in the step record of the number of rows
    index_field: int  # byte offset of the address of the rows' indices in `hidden`; 0: row r is row r
    rows: int = 0  # output, float32 [T, width], beside the panels; 0 = none
    factor: int = 0  # float32 that `hidden` is multiplied with after the sum; 0 = `constant`
    constant: int = 0x3F800000  # bits of a float32; 1.0 = none


class RopeOperands(NamedTuple):
    """One core's q/k norm, rotary embedding and KV write. qkv rows hold q heads, then k heads, then v heads."""

    qkv: int  # float32 [T, ldc], q is changed in place
    ldc: int
    q_norm: int  # float32 [head_dim] or [heads, head_dim] of this core's; 0 = no norm
    k_norm: int
    norm_stride: int  # bytes between the norm weights of two heads; 0 if they share them
    is_centered: int  # 1: LayerNorm, 0: RMSNorm
    norms_rotated: int  # 1: the norm follows the rotation
    squares: int  # for norms over all heads together, else 0: float32 [T, cores, 2], sums of squares of q and of k
    q_total: int  # elements of q on all cores
    k_total: int
    cos: int  # float32 [max_model_len, rotary / 2]
    sin: int
    rotary: int  # number of rotated elements at the beginning of a head
    is_interleaved: int  # 1: rotated pairs are neighbours, 0: rotary / 2 apart, 2: rotary / 4 apart in each half
    k_cache: int  # [blocks, kv_heads] of [head_pad, block_size], and [block_size] scales of 8-bit caches
    v_cache: int  # [blocks, kv_heads] of [block_size, head_pad], and [block_size] scales of 8-bit caches
    heads: int
    kv_heads: int  # 0: another layer has the keys and values
    head_dim: int
    head_pad: int  # head_dim rounded up to 16
    block_size: int
    eps: int  # bits of a float32
    scale: int  # bits of a float32: softmax scale, folded into q
    temperatures: int  # float32 [max_model_len], factors of q by position, or 0
    own_kv: int  # first kv head that no core before this one has
    v_norm: int  # weights of the norm of value heads, or 0
    queries: int  # output, bfloat16 [T, queries_width]: caches in pairs only
    queries_width: int
    block_bytes: int  # of one kv head in one block, of k or of v
    block_stride: int  # bytes from one block to the next
    kv_group: int  # group of layers whose slots are written
    q_shift: int = 0  # float32 [head_dim], biases of the centered norm, or 0
    k_shift: int = 0


class AttentionOperands(NamedTuple):
    """One core's paged attention over its heads; shapes as in RopeOperands."""

    qkv: int
    ldc: int
    k_cache: int
    v_cache: int
    output: int  # float32 rows: column = local query head * head_dim + d
    output_width: int  # float32 from one output row to the next
    kv_heads: int
    head_dim: int
    head_pad: int
    block_size: int
    window: int  # number of visible tokens, 0 = all; below 0, chunks of that many tokens
    cap: int  # bits of a float32: soft cap of scores by a hyperbolic tangent; 0 = none
    sinks: int  # float32 [heads], scores of a key without a value; 0 = none
    slopes: int  # float32 [heads], what a score loses by token of distance; 0 = none
    groups: int  # int32 [kv_heads][2]: range of local query heads of each kv head
    scratch: int  # one area of `scratch_stride` bytes for each worker
    scratch_stride: int
    tile_tokens: int
    queries: int  # bfloat16 [T, queries_width]: caches in pairs only
    queries_width: int
    block_bytes: int
    block_stride: int
    state_rows: int  # rows of the largest item, rounded up to sixteen
    max_group: int  # most query heads of one kv head on any core
    partials: int  # row states [slots][cores][kv_heads][max_group], the same on every core
    arrivals: int  # int64 [slots][cores][kv_heads], zero between steps
    kv_group: int  # group of layers whose block tables are read
    bias: int = 0  # float32 [heads, bias_stride]: added to scores by the key's position minus the query's; 0 = none
    bias_stride: int = 0
    bias_middle: int = 0  # column of distance 0
    record: int = 0  # bytes from the step's record to the one that describes the entries
    sees_ahead: int = 0  # 1: a token sees keys up to its end in StepRecord.ends


class BothSidesOperands(NamedTuple):
    """One core's attention over whole texts, in both directions; shapes as in AttentionOperands."""

    qkv: int
    ldc: int
    k_cache: int
    v_cache: int
    output: int
    output_width: int
    kv_heads: int
    head_dim: int
    head_pad: int
    block_size: int  # a multiple of sixteen
    block_bytes: int
    block_stride: int
    reach: int  # tokens on either side, 0 = all
    groups: int
    scratch: int
    scratch_stride: int
    tile_tokens: int
    state_rows: int
    bias: int  # float32 [heads, bias_stride]: added to scores by the key's position minus the query's; 0 = none
    bias_stride: int
    bias_middle: int  # column of distance 0
    distance_keys: int = 0  # float32 [heads, head_dim, bias_stride]: products with the query are added; 0 = none
    distance_queries: int = 0  # float32 [heads, bias_stride, head_dim]: products with the key


class PackOperands(NamedTuple):
    """One core's activations that are packed to panels for a matmul."""

    source: int  # float32 rows [T, width], or bfloat16 panels [T/16][width/32][16][32]
    panels: int
    row_scales: int  # output, float32 [T]: int8 panels only
    width: int  # a multiple of 64
    per_token: int = 1  # rows of each token of the step
    source_rows: int = 0  # int64 [T * per_token], source index of each row; 0: in order
    target_rows: int = 0  # int64 [T * per_token], panel index of each row; 0: in order
    scratch: int = 0  # float32 [width] for each worker, `scratch_stride` bytes apart: rotated rows only
    scratch_stride: int = 0


MATMUL = offsets(MatmulOperands)
GROUP_TABLE = offsets(GroupTable)
GROUP = offsets(Group)
EMBED = offsets(EmbedOperands)
ADD_ROWS = offsets(AddRowsOperands)
NORM = offsets(NormOperands)
ROPE = offsets(RopeOperands)
ATTENTION = offsets(AttentionOperands)
BOTH_SIDES = offsets(BothSidesOperands)
PACK = offsets(PackOperands)
MATMUL_BYTES = size_of(MatmulOperands)
GROUP_TABLE_BYTES = size_of(GroupTable)
GROUP_BYTES = size_of(Group)
EMBED_BYTES = size_of(EmbedOperands)
ROPE_BYTES = size_of(RopeOperands)
ATTENTION_BYTES = size_of(AttentionOperands)
BOTH_SIDES_BYTES = size_of(BothSidesOperands)
PACK_BYTES = size_of(PackOperands)
