"""Headings of `--help`: the settings that most users meet, and those that `--help-all` adds."""

ALL_FLAG = "--help-all"
ADVANCED = "Advanced"

GROUPS: dict[str, tuple[str, ...]] = {
    "Model": ("model", "served_model_name", "dtype", "quantization", "chat_template", "lora_modules", "models"),
    "Accelerator": (
        *("device", "tensor_parallel_size", "data_parallel_size", "pace", "stack", "kv_cache_dtype"),
        *("enable_prefix_caching", "speculative_config", "cpu_threads"),
    ),
    "Serving": (
        *("host", "port", "console", "config", "data_dir", "log_level", "shutdown_timeout"),
        *("tool_call_parser", "reasoning_parser"),
    ),
    "Limits": ("max_model_len", "max_num_seqs", "max_queue_delay", "ttft_slo_ms", "tpot_slo_ms"),
    "Security": ("api_key", "api_keys_file", "ssl_certfile", "ssl_keyfile", "allowed_origins"),
    "Test aids": ("inject_faults", "script", "strict_device", "usd_per_hour", "ready_file"),
    # Each has a default that suits almost everybody.
    ADVANCED: (
        *("revision", "mmproj", "disaggregate", "log_format", "disable_access_log", "health_port"),
        *("tokenizer", "modules_to_not_convert", "quantization_group_size", "quantization_symmetric"),
        *("enable_expert_parallel", "enable_lora", "max_loras", "max_lora_rank"),
        *("allow_runtime_lora_updating", "pooling", "normalize", "runner", "trust_request_chat_template"),
        *("require_artifact_digest", "catalog", "region", "spot_discount", "price_basis", "calibration"),
        *("batching", "block_size", "scheduling_policy", "step_time_target_ms", "pipeline_parallel_size"),
        *(
            "pipeline_stages",
            "pipeline_key_file",
            "distributed",
            "num_replicas",
            "context_encoding_buckets",
            "token_generation_buckets",
        ),
        *("additional_config", "override_neuron_config", "max_num_batched_tokens", "max_num_queued_reqs"),
        *("num_gpu_blocks_override", "device_memory_utilization", "cpu_binding", "isa", "kernel_cache_dir"),
        *("kernel_checks", "allow_unsupported_types", "engine_mode", "replicas", "max_engine_restarts"),
        *("engine_hang_timeout", "spare_engine", "kept_kv_cache_gib", "kv_offloading_size"),
        *("kv_offloading_dir", "kv_offloading_dir_size", "kv_events_config", "host_memory_gib"),
        *("max_body_bytes", "max_file_bytes", "max_data_bytes", "max_logprobs", "allowed_hosts"),
        *("api_key_file", "admin_api_key", "public_paths", "ssl_ca_certs", "ssl_cert_reqs"),
        *("allow_fault_header", "enable_tokenizer_info_endpoint", "enable_per_request_metrics"),
        *("stream_interval", "context_overflow", "enable_auto_tool_choice", "disable_log_stats", "log_stats_interval"),
        *("max_stored_responses", "trace_dir", "otlp_traces_endpoint", "otlp_traces_protocol", "multi_model_endpoint"),
        *("allowed_media_hosts", "limit_mm_per_prompt", "mm_processor_kwargs", "max_image_bytes"),
        *("max_image_pixels", "media_fetch_timeout", "max_audio_bytes", "allow_script", "max_model_wait"),
    ),
}
HEADINGS = {name: heading for heading, names in GROUPS.items() for name in names}
