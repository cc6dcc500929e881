"""Models made of others: one option changed on all layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuronserve.server.models.layer import ExpertsSpec, NetworkSpec
from neuronserve.server.models.spec import ModelSpec


def with_depth(spec: ModelSpec, num_layers: int) -> ModelSpec:
    """Return `spec` with `num_layers` layers like its first."""
    return spec.with_layers(spec.layers[:1] * num_layers)


def with_layer_options(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """Return `spec` with these fields of every layer."""
    return spec.with_layers(tuple(replace(layer, **changes) for layer in spec.layers))


def with_attention(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """Return `spec` with these fields of every layer's attention."""
    layers = (replace(layer, mixer=replace(layer.mixer, **changes)) for layer in spec.layers)
    return spec.with_layers(tuple(layers))


def with_windows(spec: ModelSpec, *windows: int, is_chunked: bool = False) -> ModelSpec:
    """Return `spec` with a layer like its first for each window."""
    first = spec.layers[0]
    mixers = (replace(first.mixer, window=window, is_chunked=is_chunked) for window in windows)
    return spec.with_layers(tuple(replace(first, mixer=mixer) for mixer in mixers))


def with_stack(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """Return `spec` with these fields of its last stack."""
    return replace(spec, stacks=(*spec.stacks[:-1], replace(spec.stack, **changes)))


def with_input(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """Return `spec` with these fields of its input."""
    return with_stack(spec, input=replace(spec.stack.input, **changes))


def windows_of(spec: ModelSpec) -> tuple[int, ...]:
    """Return the window of each layer."""
    return tuple(getattr(layer.mixer, "window", 0) for layer in spec.layers)


def experts_of(spec: ModelSpec) -> ExpertsSpec:
    """Return the experts of a model that has some."""
    assert spec.experts is not None
    return spec.experts


def network_of(spec: ModelSpec, layer: int = 0) -> NetworkSpec:
    """Return the network of a layer, one expert where it has experts."""
    return spec.layers[layer].feed_forward.networks[0]
