"""`system_fingerprint` of answers: equal when the same request with the same seed gets the same tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from .. import __version__
from ..link.messages import EngineInfo

HASH_DIGITS = 12


def fingerprint(info: EngineInfo, template: str) -> str:
    """Return the server's version, with a hash of the model, the chat template and the configuration."""
    facts = info.facts
    parts = [
        facts.config_sha256,
        facts.weights.sha256,
        facts.quantization,
        None if facts.groups is None else asdict(facts.groups),
        facts.modules_to_not_convert,
        asdict(facts.compiled),
        info.device,
        info.tensor_parallel_size,
        info.dtype,
        info.kv_cache_dtype,
        info.max_model_len,
        template,
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"neuronserve-{__version__}-{digest[:HASH_DIGITS]}"
