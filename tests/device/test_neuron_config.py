"""Neuron's own configurations: what each key sets, what is refused, and that nothing is passed over in silence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.config import NeuronConfig
from neuronserve.server.device.neuron_config import ReadConfig, read_additional_config, read_override_config
from neuronserve.server.device.neuron_keys import FORMS, PROGRAMS
from neuronserve.server.errors import SettingsError


def nxd(**keys: Any) -> ReadConfig:
    return read_additional_config(json.dumps({"override_neuron_config": keys}), 4096)


def plugin(**keys: Any) -> ReadConfig:
    return read_additional_config(json.dumps({"neuron_config": keys}), 4096)


def fields(read: ReadConfig) -> dict[str, Any]:
    """Return the fields that differ from an empty configuration."""
    return {
        name: value for name, value in dataclasses.asdict(read.config).items() if value != getattr(NeuronConfig(), name)
    }


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (nxd(), {}),
        (nxd(context_encoding_buckets=[1024, 512], token_generation_buckets=[2048]), {
            "context_encoding_buckets": (512, 1024), "token_generation_buckets": (2048,)
        }),
        (nxd(batch_size=8, max_batch_size=8, seq_len=2048, tp_degree=2), {
            "max_num_seqs": 8, "max_model_len": 2048, "tensor_parallel_size": 2
        }),
        (nxd(max_context_length=300), {"context_encoding_buckets": (128, 300)}),
        (nxd(max_context_length=300, context_encoding_buckets=[200]), {"context_encoding_buckets": (200,)}),
        (nxd(enable_bucketing=False), {"context_encoding_buckets": (4096,), "token_generation_buckets": (4096,)}),
        (nxd(enable_bucketing=False, seq_len=512, max_context_length=256), {
            "max_model_len": 512, "context_encoding_buckets": (256,), "token_generation_buckets": (512,)
        }),
        (nxd(quantized=True), {"quantization": "int8-weight-only"}),
        (nxd(quantized=True, quantization_dtype="f8e4m3", quantized_checkpoints_path="/q"), {"quantization": "fp8"}),
        (nxd(quantization_dtype="f8e4m3"), {}),
        (nxd(kv_cache_quant=True, torch_dtype="float32"), {"kv_cache_dtype": "fp8", "dtype": "float32"}),
        (nxd(is_prefix_caching=True, is_block_kv_layout=True, pa_block_size=32, pa_num_blocks=64), {
            "enable_prefix_caching": True, "block_size": 32, "num_gpu_blocks_override": 64
        }),
        (nxd(on_device_sampling_config={"dynamic": True, "global_topk": 64}, async_mode=True), {
            "samples_on_device": True, "is_async": True
        }),
        (nxd(on_device_sampling_config=None), {"samples_on_device": False}),
        (nxd(attn_kernel_enabled=True, mlp_kernel_enabled=False, qkv_kernel_enabled=True), {
            "kernels": ("attn_kernel_enabled", "qkv_kernel_enabled")
        }),
        (nxd(logical_nc_config=1, token_generation_batches=4, prefix_buckets=[512]), {
            "logical_nc_config": 1, "decode_batches": (4,), "prefix_buckets": (512,)
        }),
        (nxd(is_continuous_batching=False, batch_size=1), {"max_num_seqs": 1}),
        (nxd(speculation_length=0, lora_config=None, cp_degree=1, is_medusa=False), {}),
        (plugin(num_seqs_buckets=[1, 8], num_batched_tokens_buckets=[128, 512]), {
            "decode_batches": (1, 8), "max_num_seqs": 8,
            "context_encoding_buckets": (128, 512), "max_num_batched_tokens": 512
        }),
        (plugin(decode_context_length_buckets=[1024, 2048], on_device_sampling_config={"all_greedy": True}), {
            "token_generation_buckets": (1024, 2048), "samples_on_device": True
        }),
        (plugin(kv_segment_size_buckets=[512], num_batched_tokens_buckets=[512]), {
            "segment_buckets": (512,), "context_encoding_buckets": (512,), "max_num_batched_tokens": 512
        }),
    ],
)  # fmt: skip
def test_what_the_keys_say(read: ReadConfig, expected: dict[str, Any]) -> None:
    assert fields(read) == expected


def of_nxd(**keys: Any) -> str:
    return json.dumps({"override_neuron_config": keys})


def of_plugin(**keys: Any) -> str:
    return json.dumps({"neuron_config": keys})


NXD = "--additional-config: override_neuron_config"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "--additional-config: must be a JSON object, not []"),
        ("{", "--additional-config: is not JSON"),
        ('{"override_neuron_config": 3}', f"{NXD} is 3: must be a JSON object"),
        ('{"override_neuron_confg": {}}', "there is no such key (did you mean override_neuron_config?)"),
        ('{"async_mode": true}', "--additional-config: async_mode: it belongs in override_neuron_config"),
        ('{"override-neuron-config": {}, "override_neuron_config": {}}', "override_neuron_config is there twice"),
        ('{"override_neuron_config": {}, "neuron_config": {}}', "neuron_config is the vLLM-Neuron plugin's: give one"),
        ('{"vision_neuron_config": {"tp_size": 2}}', "vision_neuron_config: models of images are not emulated"),
        (of_nxd(asinc_mode=True), f"{NXD}.asinc_mode: there is no such key (did you mean async_mode?)"),
        (of_nxd(num_seqs_buckets=[8]), "it is a key of the vLLM-Neuron plugin (neuron_config)"),
        (of_plugin(seq_len=8), "it is a key of NxD Inference (override_neuron_config), not of the vLLM-Neuron"),
        (of_nxd(async_mode="yes"), f"{NXD}.async_mode is 'yes': must be true or false"),
        (of_nxd(batch_size=True), f"{NXD}.batch_size is True: must be a whole number from 1"),
        (of_nxd(context_encoding_buckets=[]), "must be a list of whole numbers from 1"),
        (of_nxd(batch_size=8, tkg_batch_size=4), f"{NXD}.tkg_batch_size is 4: {NXD}.batch_size is 8"),
        (of_nxd(torch_dtype="float16"), "must be 'bfloat16' or 'float32'"),
        (of_nxd(speculation_length=5), f"{NXD}.speculation_length is 5: speculative decoding"),
        (of_nxd(enable_fused_speculation=True), "enable_fused_speculation is True: speculative"),
        (of_nxd(cp_degree=2), "cp_degree is 2: of ways to divide a model only tensor parallelism"),
        (of_nxd(is_continuous_batching=False), "is_continuous_batching is False: slots are always"),
        (of_nxd(lora_config={"max_loras": 1}), "adapters are set with --enable-lora"),
        (of_nxd(async_mode=True, on_device_sampling_config=None), "needs on_device_sampling_config"),
        (of_nxd(on_device_sampling_config={"topk": 1}), "topk: there is no such key (did you mean top_k?)"),
        (of_nxd(enable_bucketing=False), "enable_bucketing is False: it needs max_model_len"),
        (
            of_nxd(enable_bucketing=False, seq_len=9, token_generation_buckets=[4]),
            "enable_bucketing is False: token_generation_buckets is (4,)",
        ),
        (of_nxd(max_context_length=9, seq_len=8), "max_context_length is 9: max_model_len is 8"),
        (of_nxd(max_context_length=9, context_encoding_buckets=[10]), "max_context_length is 9"),
        (of_plugin(num_seqs_buckets=[8, 1]), "each above the one before"),
        (of_plugin(decode_context_length_buckets=[100]), "is 100: must be a multiple of 128"),
        (of_plugin(kv_segment_size_buckets=[256]), "each must be one of 512, 1024, 2048, 4096, 8192"),
        (
            of_plugin(kv_segment_size_buckets=[512], num_batched_tokens_buckets=[1024]),
            "num_batched_tokens_buckets must be equal, not (1024,)",
        ),
        (of_plugin(quantization="mxfp4"), "quantization is 'mxfp4': MXFP8 and MXFP4 are chosen by --quantization"),
    ],
)
def test_what_is_wrong_is_named_with_key_value_and_limit(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_additional_config(text)
    assert complaint in str(caught.value)


def test_decode_buckets_are_below_the_longest_context() -> None:
    with pytest.raises(SettingsError, match="must be a multiple of 128 and below max_model_len 4096"):
        plugin(decode_context_length_buckets=[4096])


def test_what_changes_nothing_is_named() -> None:
    read = nxd(fused_qkv=True, sequence_parallel_enabled=False, async_mode=True, skip_warmup=True)
    assert read.notices == (
        f"{NXD}: read, but no time depends on it yet: async_mode",
        f"{NXD}: without effect here: fused_qkv, skip_warmup",
    )
    assert nxd(seq_len=512).notices == ()


def test_the_old_flag_takes_the_keys_by_themselves() -> None:
    read = read_override_config('{"batch_size": 2}')
    assert (read.config.max_num_seqs, read.origins) == (2, {"max_num_seqs": "--override-neuron-config: batch_size"})


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_each_row_of_the_table_is_whole(program: Any) -> None:
    known = {field.name for field in dataclasses.fields(NeuronConfig)}
    for name, key in program.keys.items():
        assert name == key.name
        assert key.form in FORMS
        assert not key.target or key.target in known
        assert bool(key.target) or key.effect != "recorded"
        assert (key.effect == "refused") == bool(key.off), name
        assert (key.effect == "refused") == bool(key.why), name
        read = read_additional_config(json.dumps({program.name: {name: None}}), 512)
        assert fields(read) in ({}, {"samples_on_device": False})


def test_the_page_names_every_key_that_changes_what_is_served() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "coming-from" / "nxd-inference.md").read_text()
    for program in PROGRAMS:
        for key in program.keys.values():
            assert key.effect != "honoured" or f"`{key.name}`" in page, key.name
        accepted = [key for key in program.keys.values() if key.effect == "accepted"]
        assert f"| {len(accepted)} others" in page or all(f"`{key.name}`" in page for key in accepted)
