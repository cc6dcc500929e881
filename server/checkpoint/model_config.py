"""config.json of a Hugging Face checkpoint, read: what families of models it may describe is in server/models."""

from __future__ import annotations

from pathlib import Path

from server.checkpoint.compressed_tensors import refuse_unknown_method
from server.checkpoint.json_object import JsonObject, read_object
from server.errors import CheckpointError
from server.models import families
from server.models.config_values import ConfigError
from server.models.spec import ModelSpec

MAX_CONFIG_BYTES = 4 << 20


def read_model_spec(directory: Path) -> ModelSpec:
    """The dimensions and options in `directory`/config.json.

    Raises CheckpointError, naming the file, the key, the value and what is allowed, for a missing or malformed file,
    an unknown architecture, remote code, foreign quantization, and values that are out of range or contradictory.
    """
    return model_spec_of(read_object(directory / "config.json", MAX_CONFIG_BYTES))


def model_spec_of(config: JsonObject) -> ModelSpec:
    """As `read_model_spec`, of a configuration that has been read."""
    if config.get("compression_config"):
        config.refuse("compression_config", "is set: this older form is not supported, only quantization_config")
    refuse_unknown_method(config)
    try:
        return families.model_spec_of(config.values)
    except ConfigError as error:
        raise CheckpointError(config.file, str(error)) from None
