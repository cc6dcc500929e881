"""The layer after the last that predicts a further token (MTP), as a model of its own beside the one it belongs to."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from .layer import AttentionSpec
from .spec import ModelSpec

_OWN = ("model.enorm", "model.hnorm", "model.eh_proj")
_APART = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc")  # names of these where the layers have a beginning


def predictor_of(model: ModelSpec, tensors: Container[str]) -> ModelSpec:
    """Return the first layer of `model` that predicts further tokens, with its own output layer if `tensors` has one.

    It reads a token and the model's normed last state of the token before, and is like the model's last layer that
    attends (DeepSeek-V3, arXiv 2412.19437, section 2.2). Behind a picture it counts positions by tokens, which makes
    other guesses and no other output.
    """
    at = f"model.layers.{model.num_layers}."
    words = {module: f"{at}{module.removeprefix('model.')}" for module in _OWN}
    words["model.norm"] = f"{at}shared_head.norm"
    if f"{at}shared_head.head.weight" in tensors and not model.is_tied:
        words["lm_head"] = f"{at}shared_head.head"
    if apart := model.names.further:
        words = {module: f"{apart}{name}" for module, name in zip(_OWN, _APART, strict=True)}
        words |= {"model.norm": f"{apart}norm", "model.layers.0": f"{apart}layers.0"}
    like = next(layer for layer in reversed(model.layers) if isinstance(layer.mixer, AttentionSpec))
    last = model.with_layers((replace(like, weights="0" if apart else str(model.num_layers)),))
    stack = replace(last.stack, input=replace(last.stack.input, joins_states=True, joins_normed=bool(apart)))
    names = replace(model.names, words=(*model.names.words, *words.items()))
    return replace(last, stacks=(stack,), names=names, num_nextn_layers=0, vision=None)
