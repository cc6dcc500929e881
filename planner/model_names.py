"""Dimensions of a model that a user names: from a config.json, a GGUF file, or the table of public models.

Never touches the network and never reads a tensor.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ..server.checkpoint.gguf.config import gguf_config
from ..server.checkpoint.json_file import refusals_of
from ..server.checkpoint.model_config import read_model_config
from ..server.errors import SettingsError
from ..server.models.planned import planned_spec
from ..server.models.public import NAMED, SHORT_NAMES, TEST_SHAPES, TEST_VOCABULARY, candidates, models, why_not_planned
from ..server.models.spec import ModelSpec

MAX_NEAR = 3  # names that a refusal offers


def resolve_shape(model: str) -> ModelSpec:
    """Return the dimensions of `model`: a checkpoint directory, a config.json or GGUF file, or a public model's name.

    An existing path wins over a name, a short name over a public model's name. Raises SettingsError for an unknown
    name (with the nearest names) and for an ambiguous one; CheckpointError for a configuration that cannot be planned.
    """
    path = Path(model).expanduser()
    if path.is_dir() or path.is_file():
        file = path / "config.json" if path.is_dir() else path
        config = gguf_config(file) or read_model_config(file)
        with refusals_of(file):
            return planned_spec(config)
    if (named := NAMED.get(model.lower())) is not None:
        return named
    found = candidates(model)
    if len(found) > 1:
        raise SettingsError(f"model {model!r} may be any of {', '.join(each.hub_id for each in found)}: name one")
    if not found:
        raise SettingsError(_unknown(model))
    return found[0].spec


def resolve_decoder(model: str) -> ModelSpec:
    """Return the dimensions of a model that generates tokens. Raises SettingsError for an encoder."""
    spec = resolve_shape(model)
    if spec.is_encoder:
        raise SettingsError(f"model {model!r} is an encoder ({spec.architecture}): it generates no tokens")
    return spec


def _unknown(model: str) -> str:
    if mechanism := why_not_planned(model):
        return f"model {model!r} has {mechanism}, which the cost model does not price"
    near = _nearest(model)
    return (
        f"model {model!r} is no checkpoint directory, no config.json file and no known name."
        + (f" Did you mean {' or '.join(near)}?" if near else "")
        + f" Known are the hub ids of {len(models())} public models, with or without organisation and -instruct, -chat"
        f" or -it; short names: {', '.join(SHORT_NAMES)}; shapes of random checkpoints, with a vocabulary of"
        f" {TEST_VOCABULARY:,} of their own: {', '.join(TEST_SHAPES)}"
    )


def _nearest(model: str) -> list[str]:
    """Return names near `model`. Organisations are compared only if `model` has one."""
    names = {name.lower(): name for name in NAMED}
    for hub_id in (hub_id for each in models() for hub_id in each.hub_ids):
        names.setdefault((hub_id if "/" in model else hub_id.rpartition("/")[2]).lower(), hub_id)
    return [names[near] for near in get_close_matches(model.lower(), names, n=MAX_NEAR)]
