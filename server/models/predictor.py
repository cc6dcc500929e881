"""The layer after the last that predicts a further token (MTP), as a model of its own beside the one it belongs to."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from .spec import ModelSpec

_OWN = ("model.enorm", "model.hnorm", "model.eh_proj")


def predictor_of(model: ModelSpec, tensors: Container[str]) -> ModelSpec:
    """Return the first layer of `model` that predicts further tokens, with its own output layer if `tensors` has one.

    It reads a token and the model's normed last state of the token before, and is like the model's last layer
    (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    at = f"model.layers.{model.num_layers}."
    words = {module: f"{at}{module.removeprefix('model.')}" for module in _OWN}
    words["model.norm"] = f"{at}shared_head.norm"
    if f"{at}shared_head.head.weight" in tensors and not model.is_tied:
        words["lm_head"] = f"{at}shared_head.head"
    last = model.with_layers((replace(model.layers[-1], weights=str(model.num_layers)),))
    stack = replace(last.stack, input=replace(last.stack.input, joins_states=True))
    names = replace(model.names, words=(*model.names.words, *words.items()))
    return replace(last, stacks=(stack,), names=names, num_nextn_layers=0)
