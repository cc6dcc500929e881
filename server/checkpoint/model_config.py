"""config.json of a Hugging Face checkpoint. Families of models are in server/models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..models import families
from ..models.config_values import Values
from ..models.spec import ModelSpec
from ..typed_json import JsonError
from .compressed_tensors import require_known_method
from .json_file import read_json, refusals_of
from .packed_form import SECTION

MAX_CONFIG_BYTES = 4 << 20
MODELOPT = "hf_quant_config.json"


class _ModelOptFile(msgspec.Struct):
    quantization: dict[str, Any]


def read_model_config(path: Path) -> dict[str, Any]:
    """Read the values of a file in the form of config.json. Raises CheckpointError for a missing or malformed one.

    Older checkpoints of ModelOpt have their quantization in a file of its own.
    """
    values: dict[str, Any] = read_json(path, MAX_CONFIG_BYTES, dict[str, Any])
    beside = path.with_name(MODELOPT)
    if not values.get(SECTION) and beside.is_file():
        own = read_json(beside, MAX_CONFIG_BYTES, _ModelOptFile).quantization
        values[SECTION] = {"quant_method": "modelopt", **own}
    return values


def read_model_spec(path: Path) -> ModelSpec:
    """Return the model that `path`, a checkpoint's directory or a file in the form of config.json, describes.

    Raises CheckpointError, naming the file, the key, the value and what is allowed, for a missing or malformed file,
    an unknown architecture, remote code, foreign quantization, and values that are out of range or contradictory.
    """
    file = path / "config.json" if path.is_dir() else path
    config = read_model_config(file)
    with refusals_of(file):
        return model_spec_of(config)


def model_spec_of(config: Values) -> ModelSpec:
    """Return the model that the values of a config.json describe. Raises JsonError where `read_model_spec` raises."""
    if config.get("compression_config"):
        raise JsonError("compression_config is set: this older form is not supported, only quantization_config")
    require_known_method(config)
    return families.model_spec_of(config)
