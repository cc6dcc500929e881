"""Models with a vision encoder: only the part that reads and writes text is served.

Their files nest it: its configuration is under `text_config`, and its tensors have one more name in front.
"""

from __future__ import annotations

from ..config_values import Values, refuse

# Architectures of the text's part by that of the whole, then by the text's `model_type`; the first is the default.
TEXT_PARTS: dict[str, dict[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Gemma3nForConditionalGeneration": {"gemma3n_text": "Gemma3nForCausalLM"},
    "Gemma4ForConditionalGeneration": {"gemma4_text": "Gemma4ForCausalLM"},
    "Llama4ForConditionalGeneration": {"llama4_text": "Llama4ForCausalLM"},
    "Mistral3ForConditionalGeneration": {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"},
    "Qwen2VLForConditionalGeneration": {"qwen2_vl_text": "Qwen2ForCausalLM"},
    "Qwen2_5_VLForConditionalGeneration": {"qwen2_5_vl_text": "Qwen2ForCausalLM"},
    "Qwen3VLForConditionalGeneration": {"qwen3_vl_text": "Qwen3ForCausalLM"},
    "Qwen3VLMoeForConditionalGeneration": {"qwen3_vl_moe_text": "Qwen3MoeForCausalLM"},
    "Qwen3_5ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    "SmolVLMForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "Idefics3ForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "LlavaForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
    },
}
FIXED: dict[str, dict[str, object]] = {"qwen3_vl_moe_text": {"norm_topk_prob": True}}  # what no key of a type says
FLAT = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")  # older files do not nest the text's
OF_THE_WHOLE = ("tie_word_embeddings", "quantization_config", "auto_map", "trust_remote_code")
VISION_PARTS = ("visual", "vision_model", "vision_tower", "connector", "multi_modal_projector", "embed_vision")
# Beginnings of names, each with the beginning in files of the text alone.
NESTED = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.": "",
    "vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.vision_model.": "vision_tower.",
    **{f"model.{part}.": f"{part}." for part in VISION_PARTS},
}


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
    if text is None and known in map(TEXT_PARTS.get, FLAT):
        return {**config, "architectures": list(known.values())}
    if not isinstance(text, dict):
        raise refuse("text_config", text, "must be an object")
    kind = text.get("model_type") or next(iter(known))
    if not isinstance(kind, str) or kind not in known:
        raise refuse("text_config.model_type", kind, f"supported are {', '.join(known)}")
    whole = {key: config[key] for key in OF_THE_WHOLE if key in config}
    return {**text, **FIXED.get(kind, {}), **whole, "architectures": [known[kind]]}


def name_in_text(name: str) -> str:
    """Return the name that a tensor or module of the text's part has in files of the text alone; others as they are."""
    for nested, own in NESTED.items():
        if name.startswith(nested):
            return own + name.removeprefix(nested)
    return name
