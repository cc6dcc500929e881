"""A device program: kernels with their operands, in order. The emulation's counterpart of a compiled graph (NEFF)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .executor import Instruction
from .isa.jit import Kernel

# Modules whose kernels divide their work by rows, with `share_begin` for each worker.
_BY_ROWS = frozenset(
    f"neuronserve.server.kernels.{name}"
    for name in (
        *(
            "embedding",
            "layer_inputs",
            "vectors",
            "norm",
            "pack",
            "activate",
            "attention.rope",
            "attention.lanes",
            "attention.integer_lanes",
        ),
        *("matmul.lanes", "matmul.group_lanes", "matmul.groups", "matmul.group_bytes"),
        *("state.convolution", "state.recurrence", "state.gated_norm"),
    )
)


class Program:
    """An append-only list of instructions. Each runs on every core it has operands for; then all cores synchronize."""

    def __init__(self, name: str, memory: object) -> None:
        """`memory` owns the memory that operands point to; it lives as long as the program."""
        self.name = name
        self.memory = memory
        self.labels: list[str] = []  # description of each instruction
        self.kernels: list[Kernel] = []
        self.collectives: list[bool] = []  # whether the instruction is an all-reduce
        self.operands: list[npt.NDArray[np.int64]] = []  # [cores, words] of each
        self.fields: list[tuple[str, ...]] = []  # names of the words, where operands are records
        self.weight_bytes = 0  # bytes read when it runs, 0 if unknown
        self.head = 0  # index of the first instruction that computes only the sampled rows
        self._table: npt.NDArray[np.int64] | None = None
        self._address = 0  # of it
        self._is_by_rows: bool | None = None

    def add(self, label: str, kernel: Kernel, operands: Sequence[tuple[int, ...]], is_collective: bool = False) -> None:
        """Append one instruction with one operand record for each core."""
        self.labels.append(label)
        self.kernels.append(kernel)
        self.collectives.append(is_collective)
        self.operands.append(np.array(operands, np.int64))
        self.fields.append(getattr(operands[0], "_fields", ()) if operands else ())
        self._table = self._is_by_rows = None

    def __len__(self) -> int:
        return len(self.kernels)

    @property
    def is_by_rows(self) -> bool:
        """Whether one worker can compute a row from begin to end: on one core, by kernels of rows only."""
        if self._is_by_rows is None:
            kernels = all(kernel.module in _BY_ROWS for kernel in self.kernels)
            self._is_by_rows = kernels and all(len(operands) == 1 for operands in self.operands)
        return self._is_by_rows

    @property
    def address(self) -> int:
        """Address of the instruction table. Reading it compiles the missing kernels."""
        if self._table is None:
            rows = [
                Instruction(kernel.address, operands.ctypes.data, len(operands))
                for kernel, operands in zip(self.kernels, self.operands, strict=True)
            ]
            self._table = np.array(rows, np.int64).reshape(len(rows), len(Instruction._fields))
            self._address = int(self._table.ctypes.data)
        return self._address
