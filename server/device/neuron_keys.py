"""The keys of Neuron's own configurations, and what this server does with each.

Two programs read them. NxD Inference reads `override_neuron_config`: names and defaults are from models/config.py of
github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54, effects from the SDK's feature-guide.rst and
vllm-user-guide-v1.rst. The vLLM-Neuron plugin of SDK 2.31 and later reads `neuron_config`: reference-configuration
and the design pages under vllm-neuron/ in github.com/aws-neuron/aws-neuron-sdk at 81ce03ae.
docs/coming-from/nxd-inference.md lists the times and the memory that a key changes on the accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

Effect = Literal[
    "honoured",  # sets a field of NeuronConfig that changes what the server does
    "recorded",  # sets a field of NeuronConfig that no step's time or memory depends on yet
    "accepted",  # has no counterpart here; only the form of its value is checked
    "refused",  # would change results, memory or times, and is not emulated
]
Form = Literal["flag", "count", "text", "texts", "lengths", "ascending", "object", "any"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one configuration."""

    name: str
    form: Form
    effect: Effect
    target: str = ""  # field of NeuronConfig
    values: Mapping[Any, Any] = field(default_factory=dict)  # value of the field by value of the key; {} = the same
    off: tuple[Any, ...] = ()  # values of a refused key that request nothing
    why: str = ""  # reason for refusing the key


@dataclass(frozen=True, slots=True)
class Program:
    """One program of Neuron: the name of its configuration in --additional-config, its own name, and its keys."""

    name: str
    title: str
    keys: Mapping[str, Key]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_count, value))


def _are_ascending(value: Any) -> bool:
    return _are_counts(value) and all(one < two for one, two in pairwise(value))


# A test of a value's form, and the words for what the value must be.
FORMS: dict[Form, tuple[Callable[[Any], bool], str]] = {
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "count": (_is_count, "a whole number from 1"),
    "text": (lambda value: isinstance(value, str), "text"),
    "texts": (
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        "a list of texts",
    ),
    "lengths": (_are_counts, "a list of whole numbers from 1"),
    "ascending": (_are_ascending, "a list of whole numbers from 1, each above the one before"),
    "object": (lambda value: isinstance(value, dict), "a JSON object"),
    "any": (lambda _: True, "anything"),
}

FORMATS = {"int8": "int8-weight-only", "f8e4m3": "fp8", "f8e5m2": "fp8_e5m2"}
DTYPES = {"bfloat16": "bfloat16", "float32": "float32"}
SEGMENTS = {512, 1024, 2048, 4096, 8192}  # reference-configuration: sizes that the segmented kernel takes

WITHOUT: tuple[Any, ...] = (None, False, 0, "", [], {})  # values of an option that is left out
ONE = (*WITHOUT, 1)  # values of a degree that divides nothing
PARALLEL = "of ways to divide a model only tensor parallelism is emulated"
SCALES = "scales are for each output column here"
DEBUG = "it is for finding faults in the real program"


def _keys(form: Form, effect: Effect, names: str, **rest: Any) -> tuple[Key, ...]:
    """Return keys that differ in their name only."""
    return tuple(Key(name, form, effect, **rest) for name in names.split())


def _honoured(form: Form, names: str, target: str, **rest: Any) -> tuple[Key, ...]:
    return _keys(form, "honoured", names, target=target, **rest)


def _recorded(form: Form, names: str, target: str) -> tuple[Key, ...]:
    return _keys(form, "recorded", names, target=target)


def _refused(form: Form, names: str, why: str, off: tuple[Any, ...] = WITHOUT) -> tuple[Key, ...]:
    return _keys(form, "refused", names, off=off, why=why)


def _accepted(form: Form, names: str) -> tuple[Key, ...]:
    return _keys(form, "accepted", names)


def _table(*rows: tuple[Key, ...]) -> dict[str, Key]:
    keys = [key for row in rows for key in row]
    found = {key.name: key for key in keys}
    assert len(found) == len(keys), "a key has two rows"
    return found


KERNELS = """attn_kernel_enabled qkv_kernel_enabled qkv_nki_kernel_enabled qkv_cte_nki_kernel_fuse_rope
    mlp_kernel_enabled mlp_tkg_nki_kernel_enabled mlp_kernel_fuse_residual_add qkv_kernel_fuse_residual_add
    out_proj_kernel_enabled attn_tkg_nki_kernel_enabled attn_tkg_builtin_kernel_enabled
    attn_block_tkg_nki_kernel_enabled attn_block_tkg_nki_kernel_cache_update
    attn_block_tkg_nki_kernel_cascaded_attention attn_block_cte_nki_kernel_enabled k_cache_transposed"""
SPECULATION = """speculation_length enable_fused_speculation enable_eagle_speculation is_eagle3 is_eagle_draft
    enable_eagle_draft_input_norm eagle_rolling_buffer_kernel_enabled token_tree_config is_medusa
    medusa_speculation_length num_medusa_heads medusa_tree draft_model_modules_to_not_convert"""
DEGREES = """cp_degree mlp_cp_degree attention_dp_degree pp_degree ep_degree enable_ve_data_parallel
    flash_decoding_enabled strided_context_parallel_kernel_enabled"""
EIGHT_BITS = "activation_quantization_type quantized_mlp_kernel_enabled rmsnorm_quantize_kernel_enabled"

# Accepted keys by reason: no published pair of measurements says what a layout or fusion is worth; the compiler is not
# modelled; the server has a way of its own; experts are computed, and divided, as --enable-expert-parallel says.
LAYOUTS = """fused_qkv sequence_parallel_enabled vocab_parallel
    qkv_kernel_nbsd_layout attn_block_tkg_nki_kernel_use_online_softmax disable_argmax_kernel
    attn_block_tkg_nki_kernel_disable_gpsimd_sb2sb fused_rmsnorm_skip_gamma disable_kv_cache_tiling
    kv_cache_tiling enable_cte_modular_flow switch_cc bucket_n_active_tokens lm_head_pad"""
COMPILER = """cc_pipeline_tiling_factor seq_len_threshold_for_cc_tiling weight_gather_seq_len_threshold target
    enable_spill_reload_dge weights_to_skip_layout_optimization dma_order_config scratchpad_page_size
    padded_hidden_size padded_intermediate_size disable_numeric_cc_token lm_head_pad_alignment_size"""
OWN_WAY = """padding_side n_active_tokens max_new_tokens buckets cast_type overrides_torch_dtype rpl_reduce_dtype
    attention_dtype attn_cls kv_cache_batch_size kv_cache_padding_size spec_batch_size
    save_sharded_checkpoint skip_sharding qk_layernorm pre_rope_rmsnorm start_rank_id local_ranks_size
    quantize_clamp_bound apply_seq_ids_mask skip_warmup enable_output_completion_notifications"""
EXPERTS = """moe_fused_nki_kernel_enabled router_topk_nki_kernel_enabled expert_mlp_nki_kernel_enabled
    shared_mlp_nki_kernel_enabled ep_dispatch_cc_option skip_vision glu_type hidden_act_scaling_factor
    hidden_act_bias gate_clamp_upper_limit gate_clamp_lower_limit up_clamp_upper_limit up_clamp_lower_limit
    use_index_calc_kernel moe_mask_padded_tokens early_expert_affinity_modulation
    disable_normalize_top_k_affinities fused_shared_experts shared_experts_sequence_parallel_enabled
    return_expert_index return_router_logits hybrid_sharding_config moe_tp_degree moe_ep_degree
    transpose_shared_experts_weights blockwise_matmul_config router_config"""

NXD_INFERENCE = Program(
    "override_neuron_config",
    "NxD Inference",
    _table(
        _honoured("lengths", "context_encoding_buckets", "context_encoding_buckets"),
        _honoured("lengths", "token_generation_buckets", "token_generation_buckets"),
        _honoured("flag", "enable_bucketing", ""),
        _honoured("count", "max_context_length", ""),
        _honoured("count", "seq_len max_length n_positions", "max_model_len"),
        _honoured("count", "batch_size max_batch_size tkg_batch_size", "max_num_seqs"),
        _honoured("count", "tp_degree world_size", "tensor_parallel_size"),
        _honoured("text", "torch_dtype", "dtype", values=DTYPES),
        _honoured("flag", "quantized", ""),
        _honoured("text", "quantization_dtype", "", values=FORMATS),
        _honoured("texts", "modules_to_not_convert", "modules_to_not_convert"),
        _honoured("flag", "kv_cache_quant", "kv_cache_dtype", values={True: "fp8", False: None}),
        _honoured("flag", "is_prefix_caching", "enable_prefix_caching"),
        _honoured("count", "pa_block_size", "block_size"),
        _honoured("count", "pa_num_blocks", "num_gpu_blocks_override"),
        _honoured("count", "logical_nc_config logical_neuron_cores", "logical_nc_config"),
        _honoured("lengths", "token_generation_batches", "decode_batches"),
        _honoured("object", "on_device_sampling_config", "samples_on_device"),
        _honoured("flag", "is_continuous_batching", ""),
        _recorded("lengths", "prefix_buckets", "prefix_buckets"),
        _recorded("flag", "async_mode", "is_async"),
        _recorded("flag", KERNELS, "kernels"),
        _refused("count", "ctx_batch_size", "prompts are encoded one by one", ONE),
        _refused("any", "quantization_block_size quantization_block_axis", SCALES),
        _refused("object", "kv_quant_config", "the cache's scales are the server's"),
        _refused("any", EIGHT_BITS, "activations in 8 bits go with quantization int8 alone here"),
        _refused("any", SPECULATION, "speculative decoding is not emulated"),
        _refused("any", DEGREES, PARALLEL, ONE),
        _refused("any", "lora_config", "adapters are set with --enable-lora, --max-loras and --max-lora-rank"),
        _refused(
            "any",
            "windowed_context_encoding_size chunked_prefill_config",
            "--batching and --context-encoding-buckets decide how prompts are cut",
        ),
        _refused("any", "is_mxfp4_compute is_full_model_shuffled", "no MX"),
        _refused("object", "text_neuron_config vision_neuron_config", "no images"),
        _refused("flag", "allow_input_truncation", "a prompt is never cut short"),
        _refused("flag", "on_cpu", "there is no other device to fall back to"),
        _refused("any", "tensor_replacement_config", DEBUG),
        _accepted("flag", "is_block_kv_layout"),
        _accepted("text", "quantized_checkpoints_path quantization_type quantization_scale_dtype"),
        _accepted("any", "tensor_capture_config output_logits layer_boundary_markers"),
        _accepted("flag", LAYOUTS),
        _accepted("any", COMPILER),
        _accepted("any", OWN_WAY),
        _accepted("any", EXPERTS),
    ),
)

VLLM_NEURON = Program(
    "neuron_config",
    "the vLLM-Neuron plugin",
    _table(
        _honoured("ascending", "num_batched_tokens_buckets", "context_encoding_buckets"),
        _honoured("ascending", "decode_context_length_buckets", "token_generation_buckets"),
        _honoured("ascending", "num_seqs_buckets", "decode_batches"),
        _honoured("texts", "modules_to_not_convert", "modules_to_not_convert"),
        _honoured("object", "on_device_sampling_config", "samples_on_device"),
        _recorded("ascending", "kv_segment_size_buckets", "segment_buckets"),
        _refused("text", "quantization", "MXFP8 and MXFP4 are chosen by --quantization"),
        _refused(
            "any",
            "ep_degree attention_dp_size embedding_dp_size mlp_dp_size lm_head_dp_size apply_prefill_dcp",
            PARALLEL,
            ONE,
        ),
        _refused("any", "tensor_replacement", DEBUG),
        _accepted("flag", "fp8_packed_kv enable_structured_outputs"),
        _accepted("any", "tensor_capture"),
    ),
)

PROGRAMS = (NXD_INFERENCE, VLLM_NEURON)

# Keys of on_device_sampling_config: OnDeviceSamplingConfig of NxD Inference, and reference-configuration. Requests
# say how they are sampled; these are defaults and limits of the real sampler, which the emulated one does not have.
SAMPLING_KEYS = (
    *("do_sample", "top_k", "top_p", "temperature", "dynamic", "deterministic", "global_topk", "all_greedy"),
    *("on_device_sampling_config", "top_k_kernel_enabled", "sampling_dp_degree"),
)
