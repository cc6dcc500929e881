"""A step on its way from stage to stage: the filled input arrays, and the rows of the stream.

All stages have arrays of the same shapes, and the same blocks for the same positions, so that what the first stage has
laid out holds for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ...types import ScheduledSeq
from ..operands import Placement
from ..step_inputs import Int32, StepInputs

Rows = npt.NDArray[np.float32]


def stream_of(placement: Placement) -> Rows:
    """Return the residual stream of a placed model, [tokens, padded hidden size]; programs read and write it."""
    stream: Rows = placement.buffers.hidden.array(np.float32, -1, placement.buffers.widths.hidden)
    return stream


class StepHeader(msgspec.Struct, array_like=True, frozen=True):
    """Sizes of one step."""

    num_tokens: int
    num_seqs: int
    num_tiles: int
    table_width: int  # columns of block tables that are in use
    are_alone: bool  # each row is the one token of a sequence
    wanted: list[int]  # rows that the first stage wants back


def header_of(inputs: StepInputs, seqs: Sequence[ScheduledSeq], wanted: list[int]) -> StepHeader:
    """Return the sizes of the step of `seqs` that fills `inputs`."""
    num_tokens = sum(len(seq.token_ids) for seq in seqs)
    width = max(len(table) for seq in seqs for table in seq.block_tables)
    return StepHeader(num_tokens, len(seqs), inputs.num_entries, width, len(inputs.alone) > 0, wanted)


_HEADERS = msgspec.msgpack.Decoder(StepHeader)
_LENGTH_BYTES = 4


def packed(header: StepHeader, inputs: StepInputs, hidden: Rows) -> bytes:
    """Return the step of `inputs` and its rows of the stream as bytes."""
    head = msgspec.msgpack.encode(header)
    arrays = [*_arrays(header, inputs), hidden[: header.num_tokens]]
    return b"".join((len(head).to_bytes(_LENGTH_BYTES, "big"), head, *(each.tobytes() for each in arrays)))


def unpack(data: bytes, inputs: StepInputs, hidden: Rows) -> StepHeader:
    """Fill `inputs` and `hidden` with a packed step; return its sizes."""
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    header = _HEADERS.decode(data[_LENGTH_BYTES:begin])
    for array in (*_arrays(header, inputs), hidden[: header.num_tokens]):
        array[...] = np.frombuffer(data, array.dtype, array.size, begin).reshape(array.shape)
        begin += array.nbytes
    inputs.set_sizes(header.num_tokens, header.num_seqs, header.num_tiles, header.are_alone)
    return header


def _arrays(header: StepHeader, inputs: StepInputs) -> Sequence[Int32]:
    """Return the parts in use of the arrays that layers read."""
    tokens, seqs, tiles = header.num_tokens, header.num_seqs, header.num_tiles
    return (
        inputs.positions[:tokens],
        inputs.slots[:, :tokens],
        inputs.query_start[: seqs + 1],
        inputs.block_tables[:, :seqs, : header.table_width],
        inputs.tile_seq[:tiles],
        inputs.tile_row[:tiles],
        inputs.tile_split[:tiles],
        inputs.state_read[:seqs],
        inputs.state_write[:tokens],
    )
