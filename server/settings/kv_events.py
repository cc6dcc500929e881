"""Setting of the publisher of KV cache events."""

import re
from dataclasses import fields
from typing import Any, Self

from pydantic import Field, model_validator

from ..config.kv_events import KvEventsConfig
from ..typed_json import complaint, convert, parse, shown_key
from .base import Settings
from .model import Json

_LEAST = {"buffer_steps": 1, "hwm": 0, "max_queue_size": 1}
_MOST = 10_000_000
_ENDPOINT = re.compile(r"tcp://(\*|\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})", re.ASCII)
_LAST_PORT = 65535


class KvEventsSettings(Settings):
    """Base of the settings of `neuronserve serve`."""

    data_parallel_size: int
    kv_events_config: Json = Field(
        None, description='JSON with vLLM\'s keys, such as {"enable_kv_cache_events":true} (default: no KV events)'
    )

    @model_validator(mode="after")
    def _events_can_be_published(self) -> Self:
        config = self.kv_events
        for key, least in _LEAST.items():
            if not least <= (value := getattr(config, key)) <= _MOST:
                raise ValueError(_refusal(key, value, f"expected {least} to {_MOST}"))
        for key in ("endpoint", "replay_endpoint"):
            endpoint = getattr(config, key)
            if endpoint is not None:
                found = _ENDPOINT.fullmatch(endpoint)
                if found is None or int(found[2]) + self.data_parallel_size - 1 > _LAST_PORT:
                    problem = f"expected tcp://HOST:PORT, PORT + rank of an engine up to {_LAST_PORT}"
                    raise ValueError(_refusal(key, endpoint, problem))
        return self

    @property
    def kv_events(self) -> KvEventsConfig:
        """Return what is published. Raises ValueError."""
        given = parse(self.kv_events_config or "{}")
        if not isinstance(given, dict):
            raise ValueError("kv_events_config must be a JSON object")
        known = [field.name for field in fields(KvEventsConfig)]
        if unknown := [shown_key(key) for key in given if key not in known]:
            raise ValueError(f"kv_events_config has no key {', '.join(unknown)}; it has {', '.join(known)}")
        return convert(given, KvEventsConfig, "kv_events_config.")


def _refusal(key: str, value: Any, problem: str) -> str:
    return complaint(f"kv_events_config.{key}", value, problem)
