"""Writes GGUF files of tiny models with the package's own writer, as conversion makes them of a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.gguf.architectures import ARCHITECTURES as ROWS
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.model_config import model_spec_of, read_model_spec
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.model_source import describe_checkpoint
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import tensor_shapes
from tools.random_checkpoint.writer import Options, write_checkpoint

ARCHITECTURES = {row.model_type or row.name: row.name for row in reversed(ROWS.values())} | {
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
}
PAIRED, SHIFTED = (
    (
        "llama",
        "granite",
        "granitemoe",
        "smollm3",
        "minicpm",
        "arcee",
        "olmo",
        "internlm2",
        "granitehybrid",
        "nemotron_h",
        "nemotron_h_moe",
    ),
    ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron", "qwen35", "qwen35moe", "qwen3next"),
)  # rotary pairs; norms with 1 added
TURNED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")  # GPT-2's, stored [inputs, outputs]
EXPERT = re.compile(r"\.experts\.(\d+)\.")
# What a file of the architecture cannot say otherwise.
EXPRESSIBLE: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "gemma3_text": {"layer_types": None, "query_pre_attn_scalar": 32},
    "gemma2": {"layer_types": None, "query_pre_attn_scalar": 32},
    "mistral": {"sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "mixtral": {"rope_theta": 1e6},
    "cohere": {"rope_theta": 500_000.0},
    "phi": {"partial_rotary_factor": 0.5},
    "llama4_text": {
        "no_rope_layers": [1, 1, 1, 0],
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
}
F32 = gguf.GGMLQuantizationType.F32
WRITERS = {
    "max_position_embeddings": "add_context_length",
    "hidden_size": "add_embedding_length",
    "num_hidden_layers": "add_block_count",
    "intermediate_size": "add_feed_forward_length",
    "num_attention_heads": "add_head_count",
    "num_key_value_heads": "add_head_count_kv",
    "rms_norm_eps": "add_layer_norm_rms_eps",
    "layer_norm_eps": "add_layer_norm_eps",
    "n_positions": "add_context_length",
    "n_embd": "add_embedding_length",
    "n_layer": "add_block_count",
    "n_inner": "add_feed_forward_length",
    "n_head": "add_head_count",
    "layer_norm_epsilon": "add_layer_norm_eps",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
    "attention_multiplier": "add_attention_scale",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "logits_scaling": "add_logit_scale",
    "logit_scale": "add_logit_scale",
    "num_experts": "add_expert_count",
    "num_local_experts": "add_expert_count",
    "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
    "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
    "interleave_moe_layer_step": "add_interleave_moe_layer_step",
    "use_parallel_residual": "add_parallel_residual",
}
Edit = Callable[[gguf.GGUFWriter], object]
Kinds = gguf.GGMLQuantizationType | Callable[[str], gguf.GGMLQuantizationType]  # by the model's name of a tensor


def write_pair(shape: str, root: Path, kind: Kinds = F32, edit: Edit = lambda _: None) -> Path:
    """`root/plain`, a float32 checkpoint, and the GGUF file that conversion makes of it, which is returned."""
    write_checkpoint(shape, root / "plain", Options(dtype="f32"))
    config = json.loads((root / "plain" / "config.json").read_text())
    config |= EXPRESSIBLE.get(config["model_type"], {})
    (root / "plain" / "config.json").write_text(json.dumps(config))
    spec, _, stored = describe_checkpoint(root / "plain", RequestedFormats("float32"))
    checkpoint = Checkpoint.open(root / "plain", spec, stored)
    tensors = {name: checkpoint.load(name) for name in tensor_shapes(spec)}
    return write_gguf(root / "model.gguf", config, tensors, kind, edit)


def write_gguf(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    kind: Kinds = F32,
    edit: Edit = lambda _: None,
) -> Path:
    """The GGUF file at `path` of these tensors, matrices quantized to `kind`."""
    architecture = config.get("gguf") or ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    write_keys(writer, config["keys"]) if "keys" in config else write_config(writer, config)
    write_byte_level_tokenizer(writer, config["vocab_size"], config.get("tokens", {}))
    number = {name: each for each, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config.get("num_hidden_layers", config.get("n_layer")))
    for name, values in config.items():
        if isinstance(values, np.ndarray):  # a tensor of the file that is none of the model's
            writer.add_tensor(name, values)
    for name, values in apart(together(tensors), config):
        stored = file_name(architecture, names, name)
        converted = convert(architecture, config, name, values)
        its_kind = kind if isinstance(kind, gguf.GGMLQuantizationType) else kind(name)
        if values.ndim > 1 and its_kind != F32:
            writer.add_tensor(stored, gguf.quants.quantize(converted, its_kind), raw_dtype=its_kind)
        else:
            writer.add_tensor(stored, converted)
    edit(writer)
    finish(writer)
    return path


def file_name(architecture: str, names: gguf.TensorNameMap, name: str) -> str:
    """Return the name of a tensor in a file: the package's for all that it knows."""
    for ending, own in ROWS[architecture].in_block.items():
        if name.endswith(ending):
            return f"blk.{re.findall(r'[0-9]+', name)[0]}.{own}"
    known = name
    for ours, word in ROWS[architecture].words.items():
        known = known.replace(ours, word)
    stored = names.get_name(known, (".weight", ".bias")) or names.get_name(name, (".weight", ".bias"))
    assert stored is not None, name
    return stored if stored.endswith((".weight", ".bias", ".ssm_a", ".ssm_d")) else f"{stored}.weight"


def write_keys(writer: gguf.GGUFWriter, values: dict[str, Any]) -> None:
    """Write values of the architecture, each in its type."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in values.items():
        full = key if key.startswith("tokenizer.") else f"{writer.arch}.{key}"
        writer.add_array(full, value) if isinstance(value, list) else kinds[type(value)](full, value)


def random_tensors(spec: ModelSpec) -> dict[str, np.ndarray]:
    """Return random values of all tensors of a model."""
    random = np.random.default_rng(2)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in tensor_shapes(spec).items()}


def assert_file_has(root: Path, own: dict[str, Any], file: dict[str, Any], edits: Sequence[Edit] = ()) -> None:
    """Check that a file of random tensors has the model that the config.json `own` describes, and the tensors."""
    spec = model_spec_of(own)
    tensors = random_tensors(spec)
    path = write_gguf(root / "m.gguf", file, tensors, edit=lambda writer: [edit(writer) for edit in edits])
    directory = gguf_directory(path, root / "cache")
    assert read_model_spec(directory) == spec
    checkpoint = Checkpoint.open(directory, spec)
    assert checkpoint.surplus == ()
    for name, values in tensors.items():
        np.testing.assert_allclose(checkpoint.load(name), values, atol=5e-7)


def apart(tensors: dict[str, np.ndarray], config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors, those that conversion takes apart in parts (conversion/{deepseek,granite,qwen,gemma}.py)."""
    for name, values in tensors.items():
        if name.endswith("kv_b_proj.weight") and "attention.key_length_mla" in config["keys"]:
            heads, size = config["num_attention_heads"], config["nope"]
            keys, rest = np.split(values.reshape(heads, -1, values.shape[-1]), [size], axis=1)
            yield name.replace("kv_b", "k_b"), np.ascontiguousarray(keys.swapaxes(1, 2))
            yield name.replace("kv_b", "v_b"), np.ascontiguousarray(rest)
        elif name.endswith("shared_mlp.input_linear.weight"):
            stem = "mlp.shared_expert." if config["has_experts"] else "mlp."
            for part, half in zip(("gate", "up"), np.split(values, 2), strict=True):
                yield name.replace("shared_mlp.input_linear", f"{stem}{part}_proj"), half
        elif name.endswith("shared_mlp.output_linear.weight") and not config["has_experts"]:
            yield name.replace("shared_mlp.output_linear", "mlp.down_proj"), values
        elif name.endswith("in_proj_qkvz.weight"):
            groups = values.reshape(config["linear_num_key_heads"], -1, values.shape[-1])
            sizes = np.cumsum([config["linear_key_head_dim"]] * 2 + [config["group_values"]])
            *mixed, gates = (part.reshape(-1, values.shape[-1]) for part in np.split(groups, sizes, axis=1))
            yield name.replace("qkvz", "qkv"), np.concatenate(mixed)
            yield name.replace("qkvz", "z"), gates
        elif config.get("gguf") == "gemma4" and ".experts.gate_proj" in name:
            ups = tensors[name.replace("gate", "up")]
            yield name.replace("gate_proj", "gate_up_proj"), np.concatenate([values, ups], axis=1)
        elif config.get("gguf") != "gemma4" or ".experts.up_proj" not in name:
            yield name, values


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def together(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors with the experts of a layer in one tensor, in order."""
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        if (expert := EXPERT.search(name)) is None:
            found[name] = values
        else:
            found.setdefault(EXPERT.sub(".experts.", name), {})[int(expert[1])] = values
    return {
        name: np.stack([each[i] for i in sorted(each)]) if isinstance(each, dict) else each
        for name, each in found.items()
    }


def convert(architecture: str, config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """Convert a tensor as the conversion to GGUF does."""
    if ".linear_attn." in name and architecture != "qwen3next":
        return of_state(config, name, values)
    if name.endswith(
        ("A_log", "conv1d.weight", ".D", "mamba.norm.weight", "mixer.norm.weight", "linear_attn.norm.weight")
    ):
        return of_mamba(config, name, values)
    if architecture in SHIFTED and name.endswith("norm.weight"):
        return values + np.float32(1)
    if architecture == "gpt2" and TURNED.search(name):
        return np.ascontiguousarray(values.T)
    if architecture in ("gptneox", "bloom", "falcon") and ".query_key_value." in name:
        heads, kv_heads = (
            config["num_attention_heads"],
            config.get("num_key_value_heads") or config["num_attention_heads"],
        )
        groups = values.reshape(kv_heads, heads // kv_heads + 2, -1, *values.shape[1:])
        parts = groups[:, :-2], groups[:, -2], groups[:, -1]
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    if architecture in PAIRED and (part := re.search(r"\.([qk])_proj\.", name)):
        heads = np.max(config["num_attention_heads" if part[1] == "q" else "num_key_value_heads"])
        halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    return values


def of_mamba(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """Convert a tensor of Mamba-2, or of Qwen3-Next's DeltaNet: decays are powers, vectors may be columns or groups."""
    if name.endswith("conv1d.weight"):
        return values.squeeze(1)
    values = -np.exp(values) if name.endswith("A_log") else values
    if "groups" not in config:
        return values
    return values.reshape(config["groups"], -1) if name.endswith("norm.weight") else values[:, None]


def of_state(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """Convert a tensor of Qwen 3.5's gated DeltaNet: value heads take turns by key head, decays are powers."""
    keys, heads, width = (config[f"linear_{key}"] for key in ("num_key_heads", "num_value_heads", "value_head_dim"))
    part = name.split(".linear_attn.")[1].split(".", maxsplit=1)[0]
    values = -np.exp(values) if part == "A_log" else values.squeeze(1) if part == "conv1d" else values
    if part == "norm":
        return values
    if part == "out_proj":
        return np.ascontiguousarray(of_state(config, ".linear_attn.in_proj_z", values.T).T)
    width = width if part in ("in_proj_qkv", "in_proj_z", "conv1d") else 1
    first, tail = values[: -heads * width], values[-heads * width :]
    turned = tail.reshape(keys, heads // keys, width, *tail.shape[1:]).swapaxes(0, 1)
    return np.concatenate([first, turned.reshape(tail.shape)])


def write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if "intermediate_size_mlp" in config:  # Llama 4's names for the two are the other way round
        sizes = {"moe_intermediate_size": config["intermediate_size"]}
        config = {**config, **sizes, "intermediate_size": config["intermediate_size_mlp"]}
    for key, method in WRITERS.items():
        if config.get(key) is not None:
            getattr(writer, method)(config[key])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window") and config["model_type"] != "qwen2":
        writer.add_sliding_window(config["sliding_window"])
    write_rope(writer, config)


def write_rope(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if part := config.get("rotary_pct", config.get("partial_rotary_factor")):
        writer.add_rope_dimension_count(int(part * config["hidden_size"] // config["num_attention_heads"]))
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))
    if (kind := rope.get("rope_type", rope.get("type", "default"))) not in ("default", "longrope"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
        writer.add_rope_dimension_count(2 * len(rope["long_factor"]))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    elif "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def write_byte_level_tokenizer(
    writer: gguf.GGUFWriter, size: int, named: Mapping[int, str] = MappingProxyType({})
) -> None:
    """All bytes, one merge, and tokens that are in no text, some of them with names."""
    alphabet = [*byte_alphabet(), "ab"]
    tokens = [*alphabet, *(f"<|{i}|>" for i in range(size - len(alphabet)))]
    tokens = [named.get(i, token) for i, token in enumerate(tokens)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(alphabet) + [3] * (size - len(alphabet)))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(size - 1)


def byte_alphabet() -> list[str]:
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return [chr(byte) for byte in kept] + [chr(256 + i) for i in range(len(moved))]
