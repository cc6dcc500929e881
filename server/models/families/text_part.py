"""Models that see pictures: the part of them that reads and writes text, which alone is served.

Their files nest it: its configuration under `text_config`, its tensors under one more name than it has alone.
"""

from __future__ import annotations

from neuronserve.server.models.config_values import Values, refuse

# The text's architecture by the whole's and the text's `model_type`; the first where a file names none.
TEXT_PARTS: dict[str, dict[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Llama4ForConditionalGeneration": {"llama4_text": "Llama4ForCausalLM"},
    "Mistral3ForConditionalGeneration": {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"},
}
OF_THE_WHOLE = ("tie_word_embeddings", "quantization_config", "auto_map", "trust_remote_code")
# Beginnings of names, with those that the same tensors and modules have in files of the text alone.
NESTED = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.": ""}


def text_part(config: Values) -> Values:
    """The configuration of the text's part, as files of it alone have it; `config` itself where it has no other part.

    Raises ConfigError for a `text_config` that is missing or of an unknown type.
    """
    names = config.get("architectures")
    known = TEXT_PARTS.get(names[0]) if isinstance(names, list) and names and isinstance(names[0], str) else None
    if known is None:
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise refuse("text_config", text, "must be an object")
    kind = text.get("model_type") or next(iter(known))
    if not isinstance(kind, str) or kind not in known:
        raise refuse("text_config.model_type", kind, f"supported are {', '.join(known)}")
    return {**text, **{key: config[key] for key in OF_THE_WHOLE if key in config}, "architectures": [known[kind]]}


def name_in_text(name: str) -> str:
    """The name that a tensor or module of the text's part has in files of that alone; any other stays as it is."""
    for nested, own in NESTED.items():
        if name.startswith(nested):
            return own + name.removeprefix(nested)
    return name
