"""Instructions that bring the vectors of pictures into the stream; they do nothing in a step without pictures."""

from __future__ import annotations

from ..device.layout import FLOAT32_BYTES
from ..kernels.isa.jit import Kernel
from ..kernels.program import Program
from ..kernels.vectors import VectorOperands, place_vectors
from .operands import Placement
from .residual_stream import ResidualStream


def add_vectors(at: Placement, program: Program, stream: ResidualStream, section: int, norm: Kernel) -> None:
    """Replace the embeddings of pictures' tokens (section 0), or add the vectors of a tap after an early layer.

    `norm` brings what waits into the stream before.
    """
    if at.spec.vision is None or section >= at.spec.vision.num_sections:
        return
    if section:
        stream.finish(norm)
    width = at.buffers.widths.hidden
    operands = VectorOperands(at.buffers.hidden.address, width, section * width * FLOAT32_BYTES, int(section > 0))
    program.add(f"vectors {section}", place_vectors, [operands])
    stream.replaced()
