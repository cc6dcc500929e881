"""The residual stream of a program that is being built: what waits to be put on it, and how it is read.

Nothing is computed before a layer reads the stream, because the reader's format decides how it is packed. Then one
reduce_norm does everything: all-reduce of the partial sums that branches have left, residual, norm, panels. A second
reader of the same panels costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronserve.server.engine.operands import Branch, Inputs, Operands, Placement
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.program import Program
from neuronserve.server.kernels.records import STEP
from neuronserve.server.models.ops import Add, LayerNorm, Norm

AnyNorm = Norm | LayerNorm


@dataclass(frozen=True, slots=True)
class _Panels:
    """What the packed stream holds: the stream as this norm has made it (None = as it is), packed by this kernel."""

    norm: AnyNorm | None
    kernel: Kernel


class Stream:
    """Ops of the graph say what is to happen with it; `read` and its like add the instructions that it takes."""

    def __init__(self, placement: Placement, program: Program, operands: Operands) -> None:
        self._program, self._operands, self._buffers = program, operands, placement.buffers
        self._num_cores = len(placement.cores)
        self._num_partials = 0  # of branches that have been computed and wait for Add
        self._branch = Branch()  # what the next norm puts on the stream
        self._stays: tuple[str, AnyNorm] | None = None  # the norm that takes the stream's place before it is read
        self._panels: _Panels | None = None  # what it was last packed as; None = it has changed since
        self.norm: AnyNorm | None = None  # through which it is read next

    @property
    def partials(self) -> list[int]:
        """Where the next partial sums of the cores go."""
        first, stride = self._buffers.partials.address, self._buffers.sizes.partial
        return [first + (self._num_partials + core) * stride for core in range(self._num_cores)]

    def leave_partials(self) -> None:
        """Every core has left a partial sum: those of the next branch go beyond."""
        self._num_partials += self._num_cores

    def add(self, op: Add) -> None:
        """Put on it what branches have left, with the next norm; it is read as it is, then, unless a norm comes."""
        weight = 0 if op.norm is None else self._operands.vector(op.norm.weight)
        self._branch = Branch(self._num_partials, weight, op.scale)
        self._num_partials, self.norm, self._panels = 0, None, None

    def stay(self, label: str, norm: AnyNorm) -> None:
        """Have the normed stream take its place."""
        self._stays = label, norm

    def replaced(self) -> None:
        """Something else has been put in its place."""
        self.norm = self._panels = None

    def read(self, label: str, reader: str, kernel: Kernel, **changes: int) -> Inputs:
        """As a layer called `reader` takes it, on every core: packed by `kernel`, with `changes` of the operands."""
        self.settle(kernel)
        wanted = _Panels(self.norm, kernel)
        if self._panels != wanted or changes:
            self._pack(f"{label} {self._name(reader)}", self.norm, kernel, **changes)
            self._panels = wanted
        return self._operands.normed()

    def read_sampled(self, reader: str, kernel: Kernel) -> Inputs:
        """As `read`, only the rows that are sampled."""
        self.settle(kernel)
        panels, rows = self._buffers.sampled.address, {"rows_field": STEP.num_samples, "index_field": STEP.sample_rows}
        self._pack(self._name(reader), self.norm, kernel, panels=panels, **rows)
        return [(panels, self._buffers.normed_scales.address)] * self._num_cores

    def settle(self, kernel: Kernel) -> None:
        """Have a norm take the stream's place where one is to."""
        if self._stays is not None:
            self._pack(*self._stays, kernel, stays=1)
            self._stays, self._panels = None, _Panels(None, kernel)

    def _name(self, reader: str) -> str:
        return f"{reader} inputs" if self.norm is None else self.norm.name

    def _pack(self, label: str, op: AnyNorm | None, kernel: Kernel, **changes: int) -> None:
        """Add what puts the branch on the stream and packs that through `op`."""
        operands = self._operands.norm(op, self._branch)._replace(**changes)
        is_collective = self._num_cores > 1 and self._branch.num_partials > 0
        self._program.add(label, kernel, [operands], is_collective)
        self._branch = Branch()
