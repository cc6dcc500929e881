"""Base of families in which some layers attend and the others keep a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from ..config_values import Values, refuse
from ..layer import LayerSpec
from ..state_layer import StateMixer
from .decoder import DecoderConfig

Taps = Annotated[int, Meta(ge=2, le=64)]
StateHeads = Annotated[int, Meta(ge=1, le=4096)]
StateDim = Annotated[int, Meta(ge=1, le=1024)]


class HybridConfig(DecoderConfig, kw_only=True):
    """A decoder that says which of its layers attend."""

    def state_mixer(self, values: Values) -> StateMixer:
        """Return the mixer of the layers that keep a state."""
        raise NotImplementedError

    def attends(self) -> Sequence[bool]:
        """Return whether each layer attends."""
        raise NotImplementedError

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        attends, state = self.attends(), self.state_mixer(values)
        if not any(attends):
            raise refuse("layer_types", len(attends), "one layer at least must attend")
        each = zip(super().layers(values), attends, strict=True)
        return tuple(layer if attending else replace(layer, mixer=state) for layer, attending in each)

    def types(self, given: Sequence[str] | None, kinds: Mapping[str, bool], every: int) -> Sequence[bool]:
        """Return whether each layer attends, by `layer_types` in the spelling of `kinds`, or each `every`th layer."""
        if given is None:
            return [layer % every == 0 for layer in range(1, self.num_hidden_layers + 1)]
        self.require_length(given)
        if unknown := [kind for kind in given if kind not in kinds]:
            raise refuse("layer_types", unknown[0], f"supported are {', '.join(kinds)}")
        return [kinds[kind] for kind in given]


def one_module(parts: Sequence[str], module: str) -> dict[str, str]:
    """Return names in which `parts`, one after the other, are the rows of `module`."""
    return dict.fromkeys(parts, module)
