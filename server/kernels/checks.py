"""Checked mode of kernels: every access is compared with the memory that the instruction's operands point to.

The same sources are compiled with a call before each access (isa/access.py). Instructions run one at a time, each with
a table of the ranges (server/host/address_map.py) that its operands and the step record point into. An access outside
of them is recorded and made harmless, and KernelAccessError is raised at the instruction's end. Only kernels are
checked, not the executor. A kernel still runs to its end, so that no thread is left at a barrier.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import llvmlite.binding
import numba
import numpy as np
import numpy.typing as npt
from numba import types

from ..errors import KernelAccessError
from ..host.address_map import ADDRESSES, AddressRange
from .isa import access
from .isa.jit import check_kernels, inline
from .isa.memory import fetch_add, load_i64, store_i64
from .program import Program
from .records import WORD, StepRecord, offsets, size_of

_VERBS = {access.READ: "reads", access.WRITE: "writes", access.UPDATE: "updates"}
_NULL_BYTES = 1 << 20  # a lower address is an operand of 0 plus an offset
_HARMLESS_BYTES = 64  # the widest access, and a row of a tile
_MAX_STACKS = 1024  # a kernel has one such range for each of its matmuls and each worker


class CheckRecord(NamedTuple):
    """State that the check reads and writes."""

    ranges: int  # address of [count][2]: begin and end, in order and apart
    num_ranges: int
    harmless: int  # address of unused bytes
    num_stacks: int  # ranges on workers' stacks that this instruction has registered
    stacks: int  # address of [_MAX_STACKS][2]
    num_faults: int
    address: int  # of the first fault
    size: int
    kind: int


CHECK = offsets(CheckRecord)


def _parts(record: int) -> tuple[Any, Any]:
    """Return two functions: whether bytes lie in one range or one piece of stack, and how a violation is recorded."""

    @inline
    def is_allowed(address, size):  # type: ignore[no-untyped-def]
        ranges = load_i64(record + CHECK.ranges)
        low, high = 0, load_i64(record + CHECK.num_ranges)
        while low < high:  # ranges before `low` begin at or before the address
            middle = (low + high) >> 1
            if load_i64(ranges + middle * 16) <= address:
                low = middle + 1
            else:
                high = middle
        if low > 0 and address + size <= load_i64(ranges + low * 16 - 8):
            return True
        stacks = load_i64(record + CHECK.stacks)
        for i in range(min(load_i64(record + CHECK.num_stacks), _MAX_STACKS)):
            if load_i64(stacks + i * 16) <= address and address + size <= load_i64(stacks + i * 16 + 8):
                return True
        return False

    @inline
    def note(address, size, kind):  # type: ignore[no-untyped-def]
        if fetch_add(record + CHECK.num_faults, 1) == 0:
            store_i64(record + CHECK.address, address)
            store_i64(record + CHECK.size, size)
            store_i64(record + CHECK.kind, kind)
        return load_i64(record + CHECK.harmless)

    return is_allowed, note


def _functions(record: int) -> dict[str, Any]:
    """Return the functions that checked kernels call, by symbol, with the record at this address."""
    is_allowed, note = _parts(record)

    def checked_address(address: int, size: int, kind: int) -> Any:
        if is_allowed(address, size):
            return address
        return note(address, size, kind)

    def checked_rows(address: int, stride: int, rows: int, kind: int) -> Any:
        for row in range(rows):
            if not is_allowed(address + row * stride, 64):
                return note(address + row * stride, 64, kind)
        return address

    def stack_memory(address: int, size: int) -> Any:
        if not is_allowed(address, size):
            i = fetch_add(record + CHECK.num_stacks, 1)
            if i < _MAX_STACKS:
                store_i64(load_i64(record + CHECK.stacks) + i * 16 + 8, address + size)
                store_i64(load_i64(record + CHECK.stacks) + i * 16, address)
        return address

    return {
        symbol: numba.cfunc(types.int64(*[types.int64] * count), error_model="numpy")(function)
        for symbol, function, count in (
            (access.CHECK_SYMBOL, checked_address, 3),
            (access.CHECK_ROWS_SYMBOL, checked_rows, 4),
            (access.STACK_SYMBOL, stack_memory, 2),
        )
    }


class AccessChecks:
    """The check table of this process and its findings. Instructions of several pools take turns."""

    active: ClassVar[AccessChecks | None] = None  # None: kernels are compiled without checks

    def __init__(self) -> None:
        self._stacks: npt.NDArray[np.int64] = np.zeros((_MAX_STACKS, 2), np.int64)
        self._harmless: npt.NDArray[np.uint8] = np.zeros(_HARMLESS_BYTES + 64, np.uint8)
        harmless = -(-self._harmless.ctypes.data // 64) * 64
        record = CheckRecord(0, 0, harmless, 0, self._stacks.ctypes.data, 0, 0, 0, 0)
        self._record: npt.NDArray[np.int64] = np.array(record, np.int64)
        self._functions = _functions(self._record.ctypes.data)
        for symbol, function in self._functions.items():
            llvmlite.binding.add_symbol(symbol, function.address)
        self._tables: WeakKeyDictionary[Program, _Tables] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @contextmanager
    def guard(self, program: Program, index: int, step: int) -> Iterator[None]:
        """Check the accesses of one instruction, which runs in the block, against its operands' memory.

        Raises KernelAccessError afterwards if an access was elsewhere.
        """
        with self._lock:
            tables = self._tables.get(program)
            if tables is None or tables.is_stale(program, step):
                tables = self._tables[program] = _Tables(program, step)
            table = tables.of[index]
            self._stacks[:] = 0
            for offset, value in ((CHECK.ranges, table.ctypes.data), (CHECK.num_ranges, len(table))):
                self._record[offset // WORD] = value
            self._record[CHECK.num_stacks // WORD] = self._record[CHECK.num_faults // WORD] = 0
            yield
            found = CheckRecord(*map(int, self._record))
        if found.num_faults:
            raise _error(found, program, index, step)


class _Tables:
    """Ranges that each instruction of a program may access, for one state of the address map."""

    def __init__(self, program: Program, step: int) -> None:
        self._key = ADDRESSES.version, step, len(program)
        words, shared = _step_words(step), [(each.begin, each.end) for each in ADDRESSES.ranges if each.is_indirect]
        if step:
            shared.append((step, step + size_of(StepRecord)))
        self.of = [_table(operands, words, shared) for operands in program.operands]

    def is_stale(self, program: Program, step: int) -> bool:
        return self._key != (ADDRESSES.version, step, len(program))


def _table(
    operands: npt.NDArray[np.int64], step_words: Iterable[int], shared: Iterable[tuple[int, int]]
) -> npt.NDArray[np.int64]:
    """Return ranges [ranges, 2]: the operand records, what they and the step record point into, and `shared`."""
    begin = int(operands.ctypes.data)
    spans = {(begin, begin + operands.nbytes), *shared}
    for word in {*map(int, operands.flat), *step_words}:
        found = ADDRESSES.find(word)
        if found is not None:
            spans.add((found.begin, found.end))
    merged: list[list[int]] = []
    for first, last in sorted(spans):  # adjacent ranges stay apart: no access spans both
        if merged and first < merged[-1][1]:
            merged[-1][1] = max(last, merged[-1][1])
        else:
            merged.append([first, last])
    return np.array(merged, np.int64)


def _step_words(step: int) -> list[int]:
    """Return the words of the step record at this address; none if a program has no step."""
    if not step:
        return []
    return list((ctypes.c_int64 * len(StepRecord._fields)).from_address(step))


def _error(found: CheckRecord, program: Program, index: int, step: int) -> KernelAccessError:
    kernel, label = program.kernels[index].name, program.labels[index]
    operand, place = _nearest(found, list(_operands(program, index, step)))
    times = f" (the first of {found.num_faults})" if found.num_faults > 1 else ""
    return KernelAccessError(
        f"kernel {kernel} {_VERBS[found.kind]} {found.size} bytes at {found.address:#x}{times}, {place}; "
        f"instruction {index} of program {program.name}: {label}",
        kernel,
        label,
        operand,
    )


class _Operand(NamedTuple):
    """A word that a kernel receives."""

    name: str
    core: int | None  # None: the same for all
    word: int
    memory: AddressRange  # memory that it points into

    def gap(self, found: CheckRecord) -> int:
        """Return the number of bytes between the memory and the access."""
        return max(self.memory.begin - found.address - found.size, found.address - self.memory.end, 0)


def _operands(program: Program, index: int, step: int) -> Iterator[_Operand]:
    """Yield an instruction's operands: its records, their words, and those of the step record."""
    records, fields = program.operands[index], program.fields[index]
    begin = int(records.ctypes.data)
    yield _Operand("records", None, begin, AddressRange("one for each core", begin, begin + records.nbytes))
    for core, record in enumerate(records):
        for i, word in enumerate(map(int, record)):
            yield _Operand(fields[i] if fields else f"word {i}", core, word, _memory_at(word))
    for name, word in zip(StepRecord._fields, _step_words(step), strict=False):
        yield _Operand(f"step.{name}", None, word, _memory_at(word))


def _memory_at(word: int) -> AddressRange:
    return ADDRESSES.find(word) or AddressRange("unregistered memory", word, word)


def _nearest(found: CheckRecord, operands: list[_Operand]) -> tuple[str, str]:
    """Return the operand with the nearest memory, and the distance to the memory before and after the access."""
    if found.address < _NULL_BYTES:
        zeros = [each for each in operands if each.word == 0]
        names = ", ".join(sorted({each.name for each in zeros if each.core is not None} or {e.name for e in zeros}))
        return names, f"near address 0, which is the value of {names or 'no operand'}"
    behind = [each for each in operands if each.memory.begin <= found.address]
    before = [each for each in operands if each.memory.begin > found.address]
    sides = [min(side, key=lambda each: each.gap(found)) for side in (behind, before) if side]
    sides.sort(key=lambda each: each.gap(found))
    return sides[0].name, " and ".join(_place(found, side, operands) for side in sides)


def _place(found: CheckRecord, nearest: _Operand, operands: list[_Operand]) -> str:
    memory = nearest.memory
    alike = [each for each in operands if (each.name, each.memory) == (nearest.name, memory)]
    cores = ", ".join(str(each.core) for each in alike if each.core is not None)
    operand = f"operand {nearest.name}" + (f" of core {cores}" if cores else "")
    where = f"{memory.begin - found.address} bytes before the beginning"
    if found.address >= memory.begin:
        where = f"{found.address + found.size - memory.end} bytes beyond the end"
    return f"{where} of {operand} ({memory.name}, {memory.end - memory.begin} bytes)"


def use_checks() -> None:
    """Compile and run kernels in checked mode from now on. Must be called before `use_cache` and the first kernel."""
    if AccessChecks.active is None:
        check_kernels()
        AccessChecks.active = AccessChecks()
