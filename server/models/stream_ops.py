"""Ops of inputs of layers by token, and of several streams in place of one."""

from __future__ import annotations

from dataclasses import dataclass

from .linear import Axis, Linear, Vector


@dataclass(frozen=True, slots=True)
class StreamFactor:
    """Multiply the stream with a number, after what `Add` adds."""

    factor: Vector | float  # a tensor of one element, or the number


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs of all layers by token, [layers, size]: (norm(projection) + table[token] * sqrt(size)) / sqrt(2).

    The output of the linear layer before is the projection of the embedding; the norm is that of each layer's part.
    """

    table: Linear  # [vocab, layers * size]
    norm: Vector
    eps: float
    layers: int
    vocab_size: int  # other tokens take the first row


@dataclass(frozen=True, slots=True)
class LayerInput:
    """The values of the activation before, times the layer's part of `LayerInputs`."""

    network: Axis  # of these values


@dataclass(frozen=True, slots=True)
class NormedStream:
    """A branch: the normed stream itself."""


@dataclass(frozen=True, slots=True)
class SpreadStreams:
    """Make all streams: the first is the stream, others are its products with the linear layers before, as long."""


@dataclass(frozen=True, slots=True)
class MergeStreams:
    """Replace the stream by the mean of the first and of products of the others, as long as the first."""


@dataclass(frozen=True, slots=True)
class ChangeStreams:
    """Add to each stream a mix of all, or to correct them (1 + its share) of what the layer has changed.

    The first becomes the stream. Mixes, [streams, streams], and shares, [streams], are products of `mixes` with modes:
    tanh(router @ norm(x) / size), [streams], where x is the first stream, or what the layer has left.
    """

    modes: tuple[Vector, Vector]  # norm, and router [streams, hidden]: one of both for all that a layer does
    mixes: Vector
    corrects: bool
    scale: Vector | None = None  # of the corrected first stream, for the branch that reads it

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op, those of modes once for a layer."""
        scales = () if self.scale is None else (self.scale,)
        return (self.mixes, *scales) if self.corrects else (*self.modes, self.mixes)


@dataclass(frozen=True, slots=True)
class AddToStreams:
    """Add the output of a branch to all streams but the first."""


@dataclass(frozen=True, slots=True)
class GivenStates:
    """A branch: the product, by the linear layer before, of states that come with the tokens; the norm is theirs."""


StreamsOp = (
    LayerInputs | LayerInput | NormedStream | SpreadStreams | MergeStreams | ChangeStreams | AddToStreams | GivenStates
)
