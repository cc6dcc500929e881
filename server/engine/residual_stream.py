"""The residual stream while a program is built: which branches wait to be added to it, and how it is read.

Nothing is computed before a layer reads the stream, because the reader's format decides how it is packed. Then one
reduce_norm does everything: all-reduce of the partial sums that branches have left, residual, norm, panels. A second
reader of the same panels costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..kernels.isa.jit import Kernel
from ..kernels.norm import norm_sums
from ..kernels.program import Program
from ..kernels.records import STEP
from ..models.ops import Add, LayerNorm, Norm
from ..models.stream_ops import StreamFactor
from .operands import Branch, Operands, PanelAddresses, Placement

AnyNorm = Norm | LayerNorm


@dataclass(frozen=True, slots=True)
class _Panels:
    """State of the packed stream."""

    norm: AnyNorm | None  # that was applied; None = none
    kernel: Kernel  # that packed it


class ResidualStream:
    """Collects what the graph's ops do to the stream; `read` and its like add the instructions for it."""

    def __init__(self, placement: Placement, program: Program, operands: Operands) -> None:
        self._program, self._operands, self._buffers = program, operands, placement.buffers
        self._num_cores = len(placement.cores)
        self._num_partials = 0  # of branches that are computed and wait for Add
        self._branch = Branch()  # added to the stream by the next reduce_norm
        self._stays: tuple[str, AnyNorm] | None = None  # label and norm whose result replaces the stream
        self._panels: _Panels | None = None  # how it was packed last; None = it has changed since
        self.norm: AnyNorm | None = None  # applied when it is read next

    @property
    def partials(self) -> list[int]:
        """Addresses of the next partial sum of each core."""
        first, stride = self._buffers.partials.address, self._buffers.sizes.partial
        return [first + (self._num_partials + core) * stride for core in range(self._num_cores)]

    def leave_partials(self, count: int = 0) -> None:
        """Note that every core, or the first `count`, has left a partial sum: the next branch's sums lie behind."""
        self._num_partials += count or self._num_cores

    def add(self, op: Add) -> None:
        """Add the branches' partial sums when it is read next, which needs no norm unless one follows."""
        weight = 0 if op.norm is None else self._operands.vector(op.norm.weight)
        self._branch = Branch(self._num_partials, weight, op.scale)
        self._num_partials, self.norm, self._panels = 0, None, None

    def multiply(self, op: StreamFactor) -> None:
        """Multiply the stream after the branches that wait are added."""
        if isinstance(op.factor, float):
            self._branch = replace(self._branch, constant=op.factor)
        else:
            self._branch = replace(self._branch, factor=self._operands.vector(op.factor))

    def leave_normed(self, label: str, kernel: Kernel) -> None:
        """Leave the normed stream itself as a partial sum; `kernel` also packs it."""
        self.finish(kernel)
        self.read(label, "rows", kernel, rows=self.partials[0])
        self._num_partials += 1

    def take_partial(self) -> int:
        """Return the address of the one partial sum that waits, which is not added to the stream."""
        self._num_partials = 0
        return self.partials[0]

    def norm_output(self, label: str, norm: Norm) -> None:
        """Norm the sum that the last branch has left, which becomes one partial sum."""
        branch = Branch(self._num_cores, self._operands.vector(norm.weight))
        self._num_partials -= self._num_cores
        operands = self._operands.norm(None, branch)._replace(partials=self.partials[0])
        self._program.add(f"{label} {norm.name}", norm_sums, [operands], self._num_cores > 1)
        self._num_partials += 1

    def stay(self, label: str, norm: AnyNorm) -> None:
        """Replace the stream by its norm."""
        self._stays = label, norm

    def replaced(self) -> None:
        """Note that a layer has overwritten the stream."""
        self.norm = self._panels = None

    def read(self, label: str, reader: str, kernel: Kernel, **changes: int) -> PanelAddresses:
        """Return the panels that the layer `reader` takes, on every core: packed by `kernel`, operands changed."""
        self.settle(kernel)
        wanted = _Panels(self.norm, kernel)
        if self._panels != wanted or changes:
            self._pack(f"{label} {self._name(reader)}", self.norm, kernel, **changes)
            self._panels = wanted
        return self._operands.normed()

    def read_sampled(self, reader: str, kernel: Kernel) -> PanelAddresses:
        """Return the panels of the sampled rows alone, as `read` does."""
        self.settle(kernel)
        panels, rows = self._buffers.sampled.address, {"rows_field": STEP.num_samples, "index_field": STEP.sample_rows}
        self._pack(self._name(reader), self.norm, kernel, panels=panels, **rows)
        return [(panels, self._buffers.normed_scales.address)] * self._num_cores

    def settle(self, kernel: Kernel) -> None:
        """Apply a norm that replaces the stream, if one waits."""
        if self._stays is not None:
            self._pack(*self._stays, kernel, stays=1)
            self._stays, self._panels = None, _Panels(None, kernel)

    def finish(self, kernel: Kernel) -> None:
        """Apply everything that waits, so that another program can go on from the stream."""
        self.settle(kernel)
        if self._branch.num_partials:
            self._pack("stream", None, kernel)

    def _name(self, reader: str) -> str:
        return f"{reader} inputs" if self.norm is None else self.norm.name

    def _pack(self, label: str, op: AnyNorm | None, kernel: Kernel, **changes: int) -> None:
        """Append the instruction that adds the branch to the stream, applies `op` and packs the result."""
        operands = self._operands.norm(op, self._branch)._replace(**changes)
        is_collective = self._num_cores > 1 and self._branch.num_partials > 0
        self._program.add(label, kernel, [operands], is_collective)
        self._branch = Branch()
