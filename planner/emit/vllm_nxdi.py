"""vLLM on NxD Inference: its script, and its NeuronConfig.

Sources: NxD Inference's vLLM user guide (plugin 0.5.0), feature guide, API reference and Llama-3.3-70B tutorials of the
Neuron SDK documentation at 81ce03ae (2026-08-21); names of fields, models/config.py of neuronx-distributed-inference at
4bcdc54b (2026-07-28); the key `override_neuron_config`, vllm-neuron at a5ef7c88 (2025-11-17).
"""

from __future__ import annotations

from .deployment import Deployment, LeftOut
from .vllm_script import Json, VllmServer, spanning, vllm_script

CHIPS = ("Inferentia2", "Trainium1", "Trainium2")  # user guide, "Prerequisites"
_QUANTIZED = "$QUANTIZED_CHECKPOINT"
_DTYPES = {"int8": "int8", "fp8": "f8e4m3"}  # feature guide, "Model Weight Quantization"
_QUANTIZED_NEEDED = f'{_QUANTIZED[1:]}="${{{_QUANTIZED[1:]}:?weights that save_quantized_state_dict has written}}"'
_LEADS = {
    "int8": _QUANTIZED_NEEDED,
    # Tutorial trn2-llama3.3-70b-fp8: "known limitation".
    "fp8": f"# vLLM cannot compile fp8: let NxD Inference fill NEURON_COMPILED_ARTIFACTS.\n{_QUANTIZED_NEEDED}",
}
_VLLM_BLOCK = 32  # the plugin overwrites it without a paged cache; vLLM accepts only known sizes


def neuron_config(d: Deployment) -> Json | LeftOut:
    """Return the fields of NxD Inference's NeuronConfig."""
    if refusal := _refusal(d):
        return refusal
    return {
        "tp_degree": d.tp,
        "logical_nc_config": d.part.chip.lnc,
        "torch_dtype": "bfloat16",
        "batch_size": d.slots,
        "ctx_batch_size": 1,
        "tkg_batch_size": d.slots,
        "is_continuous_batching": d.slots > 1,
        "padding_side": "right",
        "max_context_length": d.prompt_buckets[-1],
        "seq_len": d.max_model_len,
        **_overrides(d, "<QUANTIZED_CHECKPOINT>"),
    }


def script(d: Deployment) -> str | LeftOut:
    """Return the script of the server."""
    if refusal := _refusal(d):
        return refusal
    environment = {
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        "NEURON_COMPILED_ARTIFACTS": '"${NEURON_COMPILED_ARTIFACTS:-$PWD/compiled-nxdi}"',
    }
    if d.part.chip.lnc > 1:
        environment["NEURON_RT_VIRTUAL_CORE_SIZE"] = str(d.part.chip.lnc)
    if d.weights == "fp8":
        environment |= {"XLA_HANDLE_SPECIAL_SCALAR": "1", "UNSAFE_FP8FNCAST": "1"}
    server = VllmServer(
        title=f"vLLM on NxD Inference: {d.servers_per_host} x TP{d.tp} on a host of {d.part.name}, as planned.",
        environment=environment,
        flags=(
            f"--tensor-parallel-size {d.tp}",
            f"--max-num-seqs {d.slots}",
            f"--max-model-len {d.max_model_len}",
            f"--block-size {_VLLM_BLOCK}",
            f"--num-gpu-blocks-override {d.slots}",  # user guide, "Known Issues": one block a sequence
            "--no-enable-prefix-caching",
        ),
        additional_config={"override_neuron_config": _overrides(d, _QUANTIZED)},
        lead=_LEADS.get(d.weights, ""),
    )
    return vllm_script(d, server)


def _overrides(d: Deployment, quantized: str) -> Json:
    """Return the fields that vLLM does not set by its own flags."""
    config: Json = {
        "enable_bucketing": True,
        "context_encoding_buckets": list(d.prompt_buckets),
        "token_generation_buckets": list(d.decode_buckets),
        "on_device_sampling_config": {"dynamic": True},
    }
    if d.weights in _DTYPES:
        config |= {
            "quantized": True,
            "quantized_checkpoints_path": quantized,
            "quantization_dtype": _DTYPES[d.weights],
            "quantization_type": "per_channel_symmetric",
        }
    return config


def _refusal(d: Deployment) -> LeftOut | None:
    chip = d.part.chip.name
    if chip not in CHIPS:
        return LeftOut(f"vLLM on NxD Inference runs on {', '.join(CHIPS)}, not on {chip}")
    return spanning(d)
