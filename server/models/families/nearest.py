"""The supported architecture nearest to one that is not, and the mechanisms that it lacks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile

from ...typed_json import shown
from ..config_values import Values
from .family import FamilyConfig

# Mechanisms by the keys of a config.json that state them.
MECHANISMS = {
    "kv_lora_rank": "latent attention",
    "n_group": "routing limited to groups of experts",
    "index_topk": "sparse attention by an indexer",
    "linear_num_value_heads": "state layers of kind gated DeltaNet",
    "mamba_d_state": "state layers of kind Mamba",
    "mamba_num_heads": "state layers of kind Mamba-2",
    "ssm_state_size": "state layers of kind Mamba",
    "conv_L_cache": "state layers of kind short convolution",
    "attn_type_list": "state layers of kind lightning attention",
    "rwkv_version": "state layers of kind RWKV",
    "attention_hidden_size": "state layers of kind RWKV",
    "lru_width": "state layers of kind RG-LRU",
    "hybrid_override_pattern": "layers of several kinds",
    "block_configs": "layers of different sizes",
    "global_head_dim": "layers with KV heads of their own",
    "num_kv_shared_layers": "layers that read the KV of others",
    "hidden_size_per_layer_input": "an embedding for each layer",
    "enable_moe_block": "experts beside a network for all tokens",
    "altup_num_inputs": "several streams side by side (AltUp)",
    "moe_num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts": "experts",
    "cross_attention_layers": "cross attention",
    "is_encoder_decoder": "an encoder with a decoder",
    "alibi": "positions by distance (ALiBi)",
    "vision_config": "vision input",
    "audio_config": "audio input",
}
EXPERTS = "experts"
DECODER, WITH_EXPERTS, ENCODER = "LlamaForCausalLM", "MixtralForCausalLM", "BertModel"  # where no name is alike


def not_supported(name: object, config: Values, families: Mapping[str, type[FamilyConfig]]) -> str:
    """Return one line: what is not supported, the nearest of `families`, and the mechanisms that it does not have."""
    keys = _keys(config)
    nearest = _nearest(str(name), families, any(MECHANISMS.get(key) == EXPERTS for key in keys))
    own = families[nearest].__struct_encode_fields__
    has_experts = any(MECHANISMS.get(key) == EXPERTS for key in own)
    lacks = {MECHANISMS[key]: key for key in keys if key in MECHANISMS and key not in own}
    if has_experts:
        lacks.pop(EXPERTS, None)
    lacking = ", ".join(f"{mechanism} ({key})" for mechanism, key in lacks.items())
    needs = f", which lacks {lacking}" if lacking else ""
    return f"architecture {shown(name)} is not supported; nearest is {nearest}{needs}; `neuronserve models` lists all"


def _keys(config: Values) -> list[str]:
    """Return the keys that are set, also of the text's part. One group, or one expert, is as good as none."""
    inner = config.get("text_config")
    values = {**config, **(inner if isinstance(inner, dict) else {})}
    return [key for key, value in values.items() if value and (value is True or value != 1)]


def _nearest(name: str, families: Iterable[str], has_experts: bool) -> str:
    """Return the family with the same first word and the longest common beginning.

    Of equals, one that is like it in experts and the newest, which is last. Without any, one that stands for the kind.
    """
    word = _first_word(name)
    alike = [each for each in families if word and _first_word(each) == word and _ending(each) == _ending(name)]
    if alike:
        return max(reversed(alike), key=lambda each: (_common(name, each), ("Moe" in each) == has_experts))
    if _ending(name):
        return ENCODER
    return WITH_EXPERTS if has_experts else DECODER


def _common(name: str, other: str) -> int:
    """Return the length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))


def _first_word(name: str) -> str:
    """Return the first word of a name in camel case, without versions."""
    found = re.match(r"[A-Z]+[a-z]*(?=[A-Z\d_]|$)", re.sub(r"(For|Model|LMHead).*", "", name))
    return found[0].lower() if found else ""


def _ending(name: str) -> str:
    """Return the ending of a class that encodes, "" for those that generate."""
    found = re.search(r"(Model|ForMaskedLM|ForSequenceClassification)$", name)
    return found[0] if found and not name.endswith("LMHeadModel") else ""
