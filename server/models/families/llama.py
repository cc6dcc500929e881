"""Llama 2 and 3, and the many models that are one."""

from __future__ import annotations

from server.models.families.decoder import DecoderConfig


class LlamaConfig(DecoderConfig, kw_only=True):
    """Llama adds nothing to the common keys."""
