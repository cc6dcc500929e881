"""Dimensions of a model that a user names: from a config.json, or from the table of public models.

Never touches the network and never reads a tensor.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from server.checkpoint.model_config import read_model_spec
from server.errors import SettingsError
from server.models.public import MODELS, NAMED, named_model
from server.models.spec import ModelSpec


def resolve_shape(model: str) -> ModelSpec:
    """The dimensions of `model`: a checkpoint directory, a file in the form of config.json, or a public one's name.

    A path that exists wins over a name. Raises SettingsError for what is none of the three, with the nearest names, and
    CheckpointError for a configuration that cannot be served.
    """
    path = Path(model).expanduser()
    if path.is_dir() or path.is_file():
        return read_model_spec(path)
    found = named_model(model)
    if found is None:
        near = get_close_matches(model.lower(), [*NAMED, *(each.hub_id for each in MODELS)], n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise SettingsError(
            f"model {model!r} is no checkpoint directory, no config.json file and no named shape.{hint} "
            f"Named: {', '.join(NAMED)}"
        )
    return found
