"""Topology of an instance: which chips are linked to each other. The speeds of links are in the data sheet."""

from __future__ import annotations

from math import isqrt

from .instances import Instance

SERVER_CHIPS = 16  # a 4x4 torus; an UltraServer joins equal positions of its servers in rings (SDK trn2-arch.rst)


def neighbours(instance: Instance, chip: int) -> tuple[int, ...]:
    """Return the chips that `chip` has a link to, in neuron-ls's order for a torus: up, left, down, right."""
    if instance.link is None or instance.num_chips == 1:
        return ()
    match instance.chip.topology:
        case "ring":
            linked = _ring(chip, instance.num_chips)
        case "torus":
            linked = _torus(chip, instance.num_chips)
        case "switch":
            linked = list(range(instance.num_chips))
    return tuple(dict.fromkeys(other for other in linked if other != chip))


def _ring(chip: int, count: int) -> list[int]:
    return [(chip - 1) % count, (chip + 1) % count]


def _torus(chip: int, count: int) -> list[int]:
    size = min(count, SERVER_CHIPS)
    side, server, position = isqrt(size), chip // size, chip % size
    row, column = divmod(position, side)
    rows, columns = _ring(row, side), _ring(column, side)
    near = [rows[0] * side + column, row * side + columns[0], rows[1] * side + column, row * side + columns[1]]
    across = [other * size + position for other in _ring(server, count // size)]
    return [server * size + other for other in near] + across
