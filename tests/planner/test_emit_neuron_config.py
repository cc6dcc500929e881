"""`serve` accepts the configuration of `plan --emit` for the real accelerator, with the same limits."""

from __future__ import annotations

import json

import pytest

from neuronserve.planner.emit import vllm_neuron, vllm_nxdi
from neuronserve.planner.emit.deployment import Deployment, LeftOut
from neuronserve.server.config import NeuronConfig
from neuronserve.server.device.neuron_config import read_additional_config, read_override_config
from tests.planner.emit_cases import CASES

each_case = pytest.mark.parametrize("d", CASES.values(), ids=CASES)


@each_case
def test_the_configuration_of_nxd_inference(d: Deployment) -> None:
    written = vllm_nxdi.neuron_config(d)
    if isinstance(written, LeftOut):
        pytest.skip(str(written))
    read = read_override_config(json.dumps(written)).config
    assert (read.tensor_parallel_size, read.max_num_seqs, read.max_model_len) == (d.tp, d.slots, d.max_model_len)
    assert (read.context_encoding_buckets, read.token_generation_buckets) == (d.prompt_buckets, d.decode_buckets)
    assert (read.logical_nc_config, read.samples_on_device) == (d.part.chip.lnc, True)
    assert read.quantization == {"int8": "int8-weight-only", "fp8": "fp8"}.get(d.weights)


@each_case
def test_the_configuration_of_the_plugin(d: Deployment) -> None:
    written = vllm_neuron.neuron_config(d)
    read = read_additional_config(json.dumps({"neuron_config": written}), d.max_model_len).config
    assert (read.max_num_seqs, read.max_num_batched_tokens) == (d.slots, d.max_model_len)
    assert {*read.context_encoding_buckets} == {*d.prompt_buckets, d.max_model_len}
    assert {*read.token_generation_buckets} == {n for n in d.decode_buckets if n < d.max_model_len and n % 128 == 0}
    assert read != NeuronConfig()
