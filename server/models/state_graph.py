"""Ops of mixers that keep a state.

short convolution   linear state_in (b, c, x), convolution, linear state_out
gated DeltaNet      linear state_gates (a, b), linear state_in (v, q, k, z), convolution, recurrence, gated norm,
                    linear state_out
Mamba-2             linear state_in (x, B, C, z, dt), convolution, recurrence, gated norm, linear state_out

The graph's names of modules: conv.{in_b,in_c,in_x,conv,out_proj}, linear_attn.{in_q,in_k,in_v,in_z,in_b,in_a} and
mamba.{in_z,in_x,in_b,in_c,in_dt}, both with {conv1d,norm,out_proj}. Families say which of them are rows of one module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from .linear import Axis, Channels, Linear, Vector, WeightRows
from .names import Names
from .ops import Op
from .state_layer import GatedDeltaNetSpec, Mamba2Spec, ShortConvSpec, StateMixer
from .state_ops import Convolution, GatedNorm, Recurrence

Rows = dict[str, WeightRows]


class StateGraph:
    """Maker of the ops of one model's layers with a state; `part` makes all rows of a module."""

    def __init__(self, names: Names, part: Callable[[str, Axis], WeightRows], hidden: Axis, eps: float) -> None:
        self._names, self._part, self._hidden, self._eps = names, part, hidden, eps

    def mixer(self, spec: StateMixer, at: str) -> tuple[Op, ...]:
        """Return the ops of a mixer of the layer whose modules begin with `at`."""
        match spec:
            case ShortConvSpec():
                return self._short_conv(spec, f"{at}conv.")
            case GatedDeltaNetSpec():
                return self._delta_net(spec, f"{at}linear_attn.")
            case Mamba2Spec():
                return self._mamba2(spec, f"{at}mamba.")

    def _short_conv(self, spec: ShortConvSpec, at: str) -> tuple[Op, ...]:
        rows = self._rows(at, dict.fromkeys(("in_b", "in_c", "in_x"), spec.value))
        return (
            Linear("state_in", tuple(rows.values()), self._hidden, spec.has_bias),
            self._convolution(spec, f"{at}conv", spec.has_bias),
            Linear("state_out", (self._part(f"{at}out_proj", self._hidden),), spec.value, spec.has_bias),
        )

    def _delta_net(self, spec: GatedDeltaNetSpec, at: str) -> tuple[Op, ...]:
        axes = {"in_q": spec.key, "in_k": spec.key, "in_v": spec.value, "in_z": spec.value}
        rows = self._rows(at, axes | {"in_b": spec.gate, "in_a": spec.gate}, spec.num_key_heads * spec.takes_turns)
        recurrence = Recurrence(self._vector(at, "A_log", spec.gate), self._vector(at, "dt_bias", spec.gate))
        weight = Vector(f"{self._names.module(f'{at}norm')}.weight", spec.value_dim)
        return (
            Linear("state_gates", (rows["in_a"], rows["in_b"]), self._hidden),
            Linear("state_in", tuple(rows[name] for name in ("in_v", "in_q", "in_k", "in_z")), self._hidden),
            self._convolution(spec, f"{at}conv1d", has_bias=False),
            recurrence,
            GatedNorm(weight, self._eps),
            Linear("state_out", (self._part(f"{at}out_proj", self._hidden),), spec.value),
        )

    def _mamba2(self, spec: Mamba2Spec, at: str) -> tuple[Op, ...]:
        axes = {"in_z": spec.value, "in_x": spec.value, "in_b": spec.key, "in_c": spec.key, "in_dt": spec.gate}
        rows = self._rows(at, axes)
        vectors = (self._vector(at, name, spec.gate) for name in ("A_log", "dt_bias", "D"))
        name = f"{self._names.module(f'{at}norm')}.weight"
        weight = None if spec.norm == "none" else Vector(name, spec.value.size, spec.value)
        parts = tuple(rows[name] for name in ("in_x", "in_b", "in_c", "in_z", "in_dt"))
        return (
            Linear("state_in", parts, self._hidden, spec.has_bias),
            self._convolution(spec, f"{at}conv1d", spec.has_conv_bias),
            Recurrence(*vectors),
            GatedNorm(weight, self._eps, is_gate_first=spec.norm == "after_gate"),
            Linear("state_out", (self._part(f"{at}out_proj", self._hidden),), spec.value, spec.has_bias),
        )

    def _vector(self, at: str, name: str, axis: Axis) -> Vector:
        return Vector(self._names.module(f"{at}{name}"), axis.size, axis)

    def _convolution(self, spec: StateMixer, at: str, has_bias: bool) -> Convolution:
        """Return the convolution, whose channels a file has in the order q, k, v of a gated DeltaNet."""
        module, axes = self._names.module(at), spec.convolved
        order = (1, 2, 0) if isinstance(spec, GatedDeltaNetSpec) else range(len(axes))
        first = {part: sum(axes[before].size for before in list(order)[:i]) for i, part in enumerate(order)}
        firsts = tuple(first[part] for part in range(len(axes)))
        size = sum(axis.size for axis in axes)
        weight = Channels(f"{module}.weight", size, axes[0], parts=axes, firsts=firsts, taps=spec.taps)
        bias = replace(weight, tensor=f"{module}.bias", taps=0) if has_bias else None
        return Convolution(weight, bias, is_gated=isinstance(spec, ShortConvSpec))

    def _rows(self, at: str, axes: Mapping[str, Axis], num_turns: int = 0) -> Rows:
        """Return the rows of each projection. Those of one module follow one another, or alternate in turns."""
        rows: Rows = {}
        for name, axis in axes.items():
            part = self._part(f"{at}{name}", axis)
            before = [each.outputs.size for each in rows.values() if each.module == part.module]
            rows[name] = replace(part, first_row=sum(before))
        return {name: self._in_turns(part, rows, num_turns) for name, part in rows.items()} if num_turns else rows

    def _in_turns(self, part: WeightRows, rows: Rows, num_turns: int) -> WeightRows:
        stride = sum(each.outputs.size for each in rows.values() if each.module == part.module) // num_turns
        return replace(
            part,
            first_row=part.first_row // num_turns,
            unit_stride=stride,
            units_per_stride=part.outputs.units // num_turns,
        )
