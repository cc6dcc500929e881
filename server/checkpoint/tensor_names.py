"""Names and shapes of the tensors of a checkpoint, as Hugging Face's Llama, Mistral, Qwen2 and Qwen3 write them.

Linear layers are stored `[outputs, inputs]`. Owns the naming only; reads no file.
"""

from __future__ import annotations

from server.config import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every tensor the model needs, in the order it uses them. A tied output layer is not among them."""
    shapes: dict[str, Shape] = {EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    of_layer = layer_shapes(spec)
    for layer in range(spec.num_layers):
        shapes |= {layer_prefix(layer) + name: shape for name, shape in of_layer.items()}
    shapes[FINAL_NORM] = (spec.hidden_size,)
    if not spec.is_tied:
        shapes[LM_HEAD] = (spec.vocab_size, spec.hidden_size)
    return shapes


def layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The tensors of one layer; names are relative to `layer_prefix`."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if spec.has_qkv_bias:
        shapes |= {f"self_attn.{x}_proj.bias": (size,) for x, size in (("q", q), ("k", kv), ("v", kv))}
    if spec.has_o_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if spec.has_qk_norm:
        shapes |= {"self_attn.q_norm.weight": (spec.head_dim,), "self_attn.k_norm.weight": (spec.head_dim,)}
    return shapes


def is_known_extra(name: str, spec: ModelSpec) -> bool:
    """Tensors that old checkpoints carry and that follow from the rest: rope frequencies, a tied output layer."""
    return name.endswith(".rotary_emb.inv_freq") or (spec.is_tied and name == LM_HEAD)


def linear_modules(spec: ModelSpec) -> list[str]:
    """Names of the modules that are matrices with a tensor of their own; a tied output layer is not among them."""
    suffix = "_proj.weight"
    names = [name for name in tensor_shapes(spec) if name.endswith(suffix) or name == LM_HEAD]
    return [name.removesuffix(".weight") for name in names]


def scale_name(weight: str) -> str:
    """The tensor with the scales of a quantized `weight`, as compressed-tensors calls it."""
    return f"{weight}_scale"
