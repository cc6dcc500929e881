"""Serving software of published rows: which stack pads and batches them."""

from __future__ import annotations

import pytest

from neuronserve.planner.calibrate.observation import Setup
from neuronserve.planner.calibrate.published import COLUMNS, OPTIONAL_LABELS, PublishedRow, parse_rows
from neuronserve.planner.calibrate.software import server_of

CELLS = {
    "model": "Llama-3.1-8B-Instruct",
    "arch": "dense",
    "instance": "inf2.xlarge",
    "neuron_sdk": "2.29",
    "framework": "vLLM 0.16.0 (NxD Inference)",
    "tp": "2",
    "batch_size": "32",
    "max_seq_len": "4096",
    "input_len": "1000",
    "output_len": "500",
    "tpot_stat": "mean",
}


def row(**changes: str) -> PublishedRow:
    names = dict.fromkeys((*COLUMNS, *OPTIONAL_LABELS))
    cells = CELLS | changes
    (parsed,) = parse_rows([",".join(names), ",".join(f'"{cells.get(n, "")}"' for n in names)], "t.csv")
    return parsed


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "nxdi-vllm"),
        ({"framework": "vLLM 0.16.0 (NxD Inference 0.10), stock server, no overrides, bucketing on"}, "nxdi-vllm"),
        ({"notes": "compiled with one bucket"}, "optimum-vllm"),
        ({"framework": "vLLM (NxD Inference), single bucket"}, "optimum-vllm"),
        ({"framework": "vLLM (optimum-neuron)"}, "optimum-vllm"),
        ({"framework": "vLLM (optimum-neuron CLI, DP proxy)"}, "optimum-vllm"),
        ({"framework": "vLLM + Ray Serve (transformers-neuronx)", "neuron_sdk": "2.20"}, "optimum-vllm"),
        ({"framework": "vLLM-Neuron plugin 0.24", "neuron_sdk": "2.32"}, "vllm-neuron"),
        ({"framework": "TGI (optimum-neuron)"}, "tgi"),
        ({"framework": "TGI on SageMaker", "neuron_sdk": "2.16"}, None),
        ({"framework": "NxD Inference"}, None),
        ({"framework": "optimum-neuron (NxD backend)"}, None),
    ],
)
def test_a_row_names_the_stack_of_its_server(changes: dict[str, str], name: str | None) -> None:
    found = server_of(row(**changes))
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("changes", "prompt", "step"),
    [
        ({}, 1024, 2048),  # contexts of 1,001 to 1,500: nearly all in the bucket of 2,048
        ({"input_len": "1024"}, 2048, 2048),  # a prompt as long as its bucket goes to the next
        ({"input_len": "1024", "neuron_sdk": "2.21"}, 1024, 2048),  # as it did not on NxD Inference 0.1
        ({"input_len": "1024", "max_seq_len": "1024", "output_len": ""}, 1024, 1024),  # the longest is filled
        ({"batch_size": "1"}, 1024, 2048),  # one slot has buckets too
        ({"framework": "vLLM (optimum-neuron)"}, 4096, 4096),
        ({"framework": "TGI (optimum-neuron)"}, 4096, 4096),
        ({"framework": "vLLM-Neuron plugin 0.24"}, 1024, 4096),
        ({"framework": "NxD Inference"}, 4096, 4096),  # its NeuronConfig has no buckets unless they are asked for
        ({"framework": "Transformers NeuronX"}, 1024, 2048),
    ],
)
def test_prompts_and_steps_are_padded_as_the_software_does(changes: dict[str, str], prompt: int, step: int) -> None:
    setup = Setup.of(row(**changes))
    assert setup.prompt_length(int((CELLS | changes)["input_len"])) == prompt
    assert setup.step_length() == pytest.approx(step, rel=0.03)


def test_under_load_a_step_reads_the_bucket_of_the_longest_context() -> None:
    few = Setup.of(row(input_len="100", output_len="500", max_seq_len="8192"))
    assert few.step_length(is_loaded=True) == 1024 > few.step_length()
