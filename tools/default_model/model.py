"""The network for training: Llama's equations under Hugging Face's tensor names. Never used to serve."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions; all are multiples of 32, so that each of four cores gets whole tiles."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0

    def hugging_face(self) -> dict[str, Any]:
        """Return `config.json` of a LlamaForCausalLM."""
        shape = asdict(self)
        rope = {"rope_theta": shape.pop("rope_theta"), "rope_type": "default"}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **shape,
            "rope_theta": rope["rope_theta"],
            "rope_parameters": rope,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
        }


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden, queries = shape.hidden_size, shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """x `[B, T, hidden]`, cos and sin `[T, head_dim / 2]`. Plain softmax is fused better than the CPU's kernel."""
        s = self.shape
        B, T, _ = x.shape
        heads, kv = s.num_attention_heads, s.num_key_value_heads
        fused = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        qkv = functional.linear(x, fused).view(B, T, heads + 2 * kv, s.head_dim).transpose(1, 2)
        rotated, v = qkv.split([heads + kv, kv], 1)
        left, right = rotated.chunk(2, -1)
        q, k = torch.cat([left * cos - right * sin, right * cos + left * sin], -1).split([heads, kv], 1)
        k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        ahead = torch.full((T, T), -1e30).triu(1)
        scores = (q @ k.transpose(-1, -2)).float() * s.head_dim**-0.5 + ahead
        mixed = torch.softmax(scores, -1).to(v.dtype) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(B, T, heads * s.head_dim))


class FeedForward(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = functional.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)


class Norm(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.eps = shape.rms_norm_eps
        self.weight = nn.Parameter(torch.ones(shape.hidden_size))

    def forward(self, x: Any) -> Any:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = FeedForward(shape)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):  # type: ignore[misc]
    """`forward` returns the summed cross-entropy (nats) at chosen positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape)
        half = shape.head_dim // 2
        frequencies = shape.rope_theta ** (-torch.arange(half).float() / half)
        angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self._initialize(shape)

    def _initialize(self, shape: Shape) -> None:
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, parameter in self.layers.named_parameters():
            if parameter.ndim == 2:
                depth = (2 * shape.num_hidden_layers) ** -0.5
                is_out = "o_proj" in name or "down_proj" in name
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 * (depth if is_out else 0.7))

    def forward(self, tokens: Any, rows: Any, targets: Any) -> Any:
        """tokens `[B, T]`; rows and targets `[N]` are flat positions and the tokens after them."""
        T = tokens.shape[1]
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[:T].bfloat16(), self.sin[:T].bfloat16()
        for layer in self.layers:
            x = layer(x, cos, sin)
        chosen = self.norm(x).flatten(0, 1)[rows]
        logits = functional.linear(chosen, self.embed_tokens.weight).float()
        return functional.cross_entropy(logits, targets, reduction="sum")
