"""Models with a vision encoder: only the part that reads and writes text is served.

Their files nest it: its configuration is under `text_config`, and its tensors have one more name in front.
"""

from __future__ import annotations

from ..config_values import Values, refuse

# Architectures of the text's part by that of the whole, then by the text's `model_type`; the first is the default.
TEXT_PARTS: dict[str, dict[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Llama4ForConditionalGeneration": {"llama4_text": "Llama4ForCausalLM"},
    "Mistral3ForConditionalGeneration": {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"},
}
OF_THE_WHOLE = ("tie_word_embeddings", "quantization_config", "auto_map", "trust_remote_code")
# Beginnings of names, each with the beginning in files of the text alone.
NESTED = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.": ""}


def text_part(config: Values) -> Values:
    """Return the configuration of the text's part, as files of the text alone have it.

    Returns `config` itself where there is no other part. Raises ConfigError for a `text_config` that is missing or of
    an unknown type.
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
    """Return the name that a tensor or module of the text's part has in files of the text alone; others as they are."""
    for nested, own in NESTED.items():
        if name.startswith(nested):
            return own + name.removeprefix(nested)
    return name
