"""A device program: kernels with their operands, in order. The emulation's counterpart of a compiled graph (NEFF)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.kernels.executor import Instruction
from server.kernels.isa.jit import Kernel


class Program:
    """An append-only list of instructions; each runs on every core it has operands for, then all cores meet."""

    def __init__(self, name: str, memory: object) -> None:
        """`memory` is whatever owns the memory that operands point to: it lives as long as the program."""
        self.name = name
        self.memory = memory
        self.labels: list[str] = []  # what each instruction does, for people
        self.kernels: list[Kernel] = []
        self.collectives: list[bool] = []  # whether it adds up what the cores have left for each other
        self.operands: list[npt.NDArray[np.int64]] = []  # [cores, words] of each
        self.fields: list[tuple[str, ...]] = []  # names of the words, where operands are records
        self.head = 0  # the instruction from which on only the sampled rows are computed
        self._table: npt.NDArray[np.int64] | None = None

    def add(self, label: str, kernel: Kernel, operands: Sequence[tuple[int, ...]], is_collective: bool = False) -> None:
        """Append one instruction with one operand record for each core."""
        self.labels.append(label)
        self.kernels.append(kernel)
        self.collectives.append(is_collective)
        self.operands.append(np.array(operands, np.int64))
        self.fields.append(getattr(operands[0], "_fields", ()) if operands else ())
        self._table = None

    def __len__(self) -> int:
        return len(self.kernels)

    @property
    def address(self) -> int:
        """Address of the instruction table. Compiles what is not compiled yet."""
        if self._table is None:
            rows = [
                Instruction(kernel.address, operands.ctypes.data, len(operands))
                for kernel, operands in zip(self.kernels, self.operands, strict=True)
            ]
            self._table = np.array(rows, np.int64).reshape(len(rows), len(Instruction._fields))
        return int(self._table.ctypes.data)
