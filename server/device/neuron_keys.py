"""The keys of Neuron's own configurations, what each changes on the part, and what this server does with it.

Two programs read them: NxD Inference (`override_neuron_config`, names and defaults from models/config.py of
github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54; what they do from the SDK's feature-guide.rst and
vllm-user-guide-v1.rst) and the vLLM-Neuron plugin of SDK 2.31 and later (`neuron_config`,
reference-configuration.md and the design pages under vllm-neuron/ in github.com/aws-neuron/aws-neuron-sdk at 81ce03ae).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

Effect = Literal[
    "honoured",  # sets a field of NeuronConfig that changes what the server does
    "recorded",  # sets a field of NeuronConfig that no step's time or memory depends on yet
    "accepted",  # has no counterpart here; its value is looked at for its form alone
    "refused",  # would change results, memory or times, and is not emulated
]
Change = Literal["time", "memory", "time and memory", "behaviour", "nothing"]
Form = Literal["flag", "count", "number", "text", "texts", "lengths", "ascending", "object", "any"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one configuration."""

    name: str
    form: Form
    effect: Effect
    changes: Change
    target: str = ""  # field of NeuronConfig
    values: Mapping[Any, Any] = field(default_factory=dict)  # what a value means for the field; {} = itself
    off: tuple[Any, ...] = ()  # values of a refused key that ask for nothing
    why: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The configuration of one program: its place in --additional-config, and its keys."""

    name: str
    program: str
    keys: Mapping[str, Key]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_count, value))


def _are_ascending(value: Any) -> bool:
    return _are_counts(value) and all(one < two for one, two in pairwise(value))


# Whether a value is of the form, and in words what it must be.
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
SEGMENTS = {512, 1024, 2048, 4096, 8192}  # reference-configuration.md: all that the segmented kernel takes

WITHOUT: tuple[Any, ...] = (None, False, 0, "", [], {})  # of options that are left out
ONE = (*WITHOUT, 1)  # of degrees that divide nothing
MOE = "experts are computed in the server's own way, and divided as --enable-expert-parallel says"
SPECULATION = "speculative decoding is not emulated"
PARALLEL = "of ways to divide a model only tensor parallelism is emulated"
KERNEL = "no published pair of measurements says what it is worth"
COMPILER = "how the compiler works is not modelled"
DEBUG = "it is for finding faults in the real program"
SCALES = "scales are for each output column here"


def _keys(form: Form, effect: Effect, changes: Change, names: str, **rest: Any) -> tuple[Key, ...]:
    """Keys that have all but their name in common."""
    return tuple(Key(name, form, effect, changes, **rest) for name in names.split())


def _sets(form: Form, name: str, changes: Change, target: str, **rest: Any) -> Key:
    return Key(name, form, "honoured", changes, target, **rest)


def _table(*rows: Key | tuple[Key, ...]) -> dict[str, Key]:
    keys = [key for row in rows for key in (row if isinstance(row, tuple) else (row,))]
    found = {key.name: key for key in keys}
    assert len(found) == len(keys), "a key has two rows"
    return found


KERNELS = """attn_kernel_enabled qkv_kernel_enabled qkv_nki_kernel_enabled qkv_cte_nki_kernel_fuse_rope
    mlp_kernel_enabled mlp_tkg_nki_kernel_enabled mlp_kernel_fuse_residual_add qkv_kernel_fuse_residual_add
    out_proj_kernel_enabled attn_tkg_nki_kernel_enabled attn_tkg_builtin_kernel_enabled
    attn_block_tkg_nki_kernel_enabled attn_block_tkg_nki_kernel_cache_update
    attn_block_tkg_nki_kernel_cascaded_attention attn_block_cte_nki_kernel_enabled k_cache_transposed"""

NXD_INFERENCE = Dialect(
    "override_neuron_config",
    "NxD Inference",
    _table(
        _sets("lengths", "context_encoding_buckets", "time and memory", "context_encoding_buckets"),
        _sets("lengths", "token_generation_buckets", "time and memory", "token_generation_buckets"),
        _sets("flag", "enable_bucketing", "time and memory", ""),
        _sets("count", "max_context_length", "time and memory", ""),
        _keys("count", "honoured", "time and memory", "seq_len max_length n_positions", target="max_model_len"),
        _keys(
            "count", "honoured", "time and memory", "batch_size max_batch_size tkg_batch_size", target="max_num_seqs"
        ),
        _keys("count", "honoured", "time and memory", "tp_degree world_size", target="tensor_parallel_size"),
        _sets("text", "torch_dtype", "time and memory", "dtype", values=DTYPES),
        _sets("flag", "quantized", "time and memory", ""),
        _sets("text", "quantization_dtype", "time and memory", "", values=FORMATS),
        _sets("texts", "modules_to_not_convert", "time and memory", "modules_to_not_convert"),
        _sets("flag", "kv_cache_quant", "time and memory", "kv_cache_dtype", values={True: "fp8", False: None}),
        _sets("flag", "is_prefix_caching", "time", "enable_prefix_caching"),
        _sets("count", "pa_block_size", "memory", "block_size"),
        _sets("count", "pa_num_blocks", "memory", "num_gpu_blocks_override"),
        _sets("count", "logical_nc_config", "time and memory", "logical_nc_config"),
        _sets("count", "logical_neuron_cores", "time and memory", "logical_nc_config"),
        _keys("lengths", "recorded", "time", "prefix_buckets", target="prefix_buckets"),
        _keys("lengths", "honoured", "time", "token_generation_batches", target="decode_batches"),
        _keys("object", "honoured", "time", "on_device_sampling_config", target="samples_on_device"),
        _keys("flag", "recorded", "time", "async_mode", target="is_async"),
        _keys("flag", "recorded", "time", KERNELS, target="kernels", why=KERNEL),
        _sets("flag", "is_continuous_batching", "behaviour", ""),
        _keys("count", "refused", "time", "ctx_batch_size", off=ONE, why="prompts are encoded one by one"),
        _keys("flag", "accepted", "memory", "is_block_kv_layout", why="the cache here is always in blocks"),
        _keys("text", "accepted", "behaviour", "quantized_checkpoints_path", why="weights are quantized at loading"),
        _keys("text", "accepted", "behaviour", "quantization_type quantization_scale_dtype", why=SCALES),
        _keys("any", "refused", "memory", "quantization_block_size quantization_block_axis", off=WITHOUT, why=SCALES),
        _keys("object", "refused", "memory", "kv_quant_config", off=WITHOUT, why="the cache's scales are the server's"),
        _keys(
            "any",
            "refused",
            "time and memory",
            "activation_quantization_type quantized_mlp_kernel_enabled rmsnorm_quantize_kernel_enabled",
            off=WITHOUT,
            why="activations in 8 bits go with quantization int8 alone here",
        ),
        _keys(
            "any",
            "refused",
            "time and memory",
            "speculation_length enable_fused_speculation enable_eagle_speculation is_eagle3 "
            "is_eagle_draft enable_eagle_draft_input_norm eagle_rolling_buffer_kernel_enabled token_tree_config "
            "is_medusa medusa_speculation_length num_medusa_heads medusa_tree draft_model_modules_to_not_convert",
            off=WITHOUT,
            why=SPECULATION,
        ),
        _keys(
            "any",
            "refused",
            "time and memory",
            "cp_degree mlp_cp_degree attention_dp_degree pp_degree ep_degree enable_ve_data_parallel "
            "flash_decoding_enabled strided_context_parallel_kernel_enabled",
            off=ONE,
            why=PARALLEL,
        ),
        _keys(
            "any",
            "refused",
            "time and memory",
            "lora_config",
            off=WITHOUT,
            why="adapters are set with --enable-lora, --max-loras and --max-lora-rank",
        ),
        _keys(
            "any",
            "refused",
            "time",
            "windowed_context_encoding_size chunked_prefill_config",
            off=WITHOUT,
            why="how prompts are cut is --batching's and --context-encoding-buckets' business",
        ),
        _keys("any", "refused", "time and memory", "is_mxfp4_compute is_full_model_shuffled", off=WITHOUT, why="no MX"),
        _keys(
            "object", "refused", "behaviour", "text_neuron_config vision_neuron_config", off=WITHOUT, why="no images"
        ),
        _keys("flag", "refused", "behaviour", "allow_input_truncation", off=WITHOUT, why="a prompt is never cut short"),
        _keys("flag", "refused", "behaviour", "on_cpu", off=WITHOUT, why="there is no other part to fall back to"),
        _keys("any", "refused", "behaviour", "tensor_replacement_config", off=WITHOUT, why=DEBUG),
        _keys("any", "accepted", "behaviour", "tensor_capture_config output_logits layer_boundary_markers", why=DEBUG),
        _keys("flag", "accepted", "time", "fused_qkv sequence_parallel_enabled vocab_parallel", why=KERNEL),
        _keys(
            "flag",
            "accepted",
            "time",
            "qkv_kernel_nbsd_layout attn_block_tkg_nki_kernel_use_online_softmax disable_argmax_kernel "
            "attn_block_tkg_nki_kernel_disable_gpsimd_sb2sb fused_rmsnorm_skip_gamma disable_kv_cache_tiling "
            "kv_cache_tiling enable_cte_modular_flow switch_cc bucket_n_active_tokens lm_head_pad",
            why=KERNEL,
        ),
        _keys(
            "any",
            "accepted",
            "time and memory",
            "cc_pipeline_tiling_factor seq_len_threshold_for_cc_tiling weight_gather_seq_len_threshold target "
            "enable_spill_reload_dge weights_to_skip_layout_optimization dma_order_config scratchpad_page_size "
            "padded_hidden_size padded_intermediate_size disable_numeric_cc_token lm_head_pad_alignment_size",
            why=COMPILER,
        ),
        _keys(
            "any",
            "accepted",
            "behaviour",
            "padding_side n_active_tokens max_new_tokens buckets cast_type "
            "overrides_torch_dtype rpl_reduce_dtype attention_dtype attn_cls kv_cache_batch_size kv_cache_padding_size "
            "spec_batch_size "
            "save_sharded_checkpoint skip_sharding qk_layernorm pre_rope_rmsnorm start_rank_id local_ranks_size "
            "quantize_clamp_bound apply_seq_ids_mask skip_warmup enable_output_completion_notifications",
            why="this server has its own way with it",
        ),
        _keys(
            "any",
            "accepted",
            "time",
            "moe_fused_nki_kernel_enabled router_topk_nki_kernel_enabled expert_mlp_nki_kernel_enabled "
            "shared_mlp_nki_kernel_enabled ep_dispatch_cc_option skip_vision glu_type hidden_act_scaling_factor "
            "hidden_act_bias gate_clamp_upper_limit gate_clamp_lower_limit up_clamp_upper_limit up_clamp_lower_limit "
            "use_index_calc_kernel moe_mask_padded_tokens early_expert_affinity_modulation "
            "disable_normalize_top_k_affinities fused_shared_experts shared_experts_sequence_parallel_enabled "
            "return_expert_index return_router_logits hybrid_sharding_config moe_tp_degree moe_ep_degree "
            "transpose_shared_experts_weights blockwise_matmul_config router_config",
            why=MOE,
        ),
    ),
)

VLLM_NEURON = Dialect(
    "neuron_config",
    "the vLLM-Neuron plugin",
    _table(
        _sets("ascending", "num_batched_tokens_buckets", "time and memory", "context_encoding_buckets"),
        _sets("ascending", "decode_context_length_buckets", "time and memory", "token_generation_buckets"),
        _keys("ascending", "honoured", "time", "num_seqs_buckets", target="decode_batches"),
        _sets("texts", "modules_to_not_convert", "time and memory", "modules_to_not_convert"),
        _keys("ascending", "recorded", "time and memory", "kv_segment_size_buckets", target="segment_buckets"),
        _keys("object", "honoured", "time", "on_device_sampling_config", target="samples_on_device"),
        _keys(
            "text",
            "refused",
            "time and memory",
            "quantization",
            off=WITHOUT,
            why="MXFP8 and MXFP4 are chosen by --quantization",
        ),
        _keys("flag", "accepted", "memory", "fp8_packed_kv", why="the cache's layout is the server's own"),
        _keys("flag", "accepted", "behaviour", "enable_structured_outputs", why="they always are"),
        _keys(
            "any",
            "refused",
            "time and memory",
            "ep_degree attention_dp_size embedding_dp_size mlp_dp_size lm_head_dp_size apply_prefill_dcp",
            off=ONE,
            why=PARALLEL,
        ),
        _keys("any", "refused", "behaviour", "tensor_replacement", off=WITHOUT, why=DEBUG),
        _keys("any", "accepted", "behaviour", "tensor_capture", why=DEBUG),
    ),
)

DIALECTS = (NXD_INFERENCE, VLLM_NEURON)

# Keys of on_device_sampling_config: OnDeviceSamplingConfig of NxD Inference, and reference-configuration.md. Requests
# say how they are sampled; these are defaults and limits of the real sampler, which the emulated one does not have.
SAMPLING_KEYS = (
    *("do_sample", "top_k", "top_p", "temperature", "dynamic", "deterministic", "global_topk", "all_greedy"),
    *("on_device_sampling_config", "top_k_kernel_enabled", "sampling_dp_degree"),
)
