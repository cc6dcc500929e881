"""Operands of the rope kernels in tests, with defaults for all fields that a test does not give."""

from __future__ import annotations

from neuronserve.server.kernels.records import RopeOperands
from tests.kernels.kernel_bench import Array, address, float_bits


def rope_operands(qkv: Array, cos: Array, sin: Array, heads: int, **fields: int) -> RopeOperands:
    """Return operands for qkv rows [tokens, heads + 2 kv_heads, head_dim] and tables [positions, rotary / 2].

    Norms have an epsilon of 1e-6.
    """
    _, all_heads, head_dim = qkv.shape
    given = {
        "qkv": address(qkv),
        "ldc": all_heads * head_dim,
        "cos": address(cos),
        "sin": address(sin),
        "rotary": 2 * cos.shape[1],
        "heads": heads,
        "kv_heads": (all_heads - heads) // 2,
        "head_dim": head_dim,
        "head_pad": -(-head_dim // 16) * 16,
        "eps": float_bits(1e-6),
        "scale": float_bits(1.0),
    }
    given["block_stride"] = given["kv_heads"] * fields.get("block_bytes", 0)
    return RopeOperands(**{**dict.fromkeys(RopeOperands._fields, 0), **given, **fields})
