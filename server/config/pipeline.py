"""Configuration of pipeline parallelism: which stages the layers of one engine are divided into, and where they run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Stages of neighbouring layers, each on a tensor-parallel group of its own.

    The engine's own process is the first stage: it also embeds, and computes the output layer and the samples.
    """

    size: int = 1
    addresses: tuple[str, ...] = ()  # host:port of the stages after the first; () = processes of this host
    key: bytes = b""  # by which both ends of a connection know each other


ONE_STAGE = PipelineConfig()
