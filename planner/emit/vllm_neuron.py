"""The vLLM-Neuron plugin of SDK 2.31 and later, which does not use NxD Inference.

Sources: "Configuration options" (2026-08-13), "Features guide" (2026-08-13), "Scheduler Design", and the recipe and the
tutorial of Llama 3 (2026-08-17): the plugin's pages in the Neuron SDK documentation at 81ce03ae (2026-08-21).
"""

from __future__ import annotations

from .deployment import Deployment, LeftOut
from .vllm_script import Json, VllmServer, spanning, vllm_script

CHIPS = ("Trainium2", "Trainium3")  # "This document is relevant for"
_CONTEXT_STEP = 128  # decode_context_length_buckets are multiples of it
_TIMEOUT_S = 1200  # of a compilation, as in the recipe of the 70B model


def neuron_config(d: Deployment) -> Json:
    """Return the `neuron_config` of `--additional-config`.

    Prompts are not cut: `max_num_batched_tokens` and the last prompt bucket are the whole length.
    """
    config: Json = {
        "num_batched_tokens_buckets": sorted({*d.prompt_buckets, d.max_model_len}),
        "num_seqs_buckets": [d.slots],
        "on_device_sampling_config": {},
    }
    shorter = [n for n in d.decode_buckets if n < d.max_model_len and n % _CONTEXT_STEP == 0]
    return config | ({"decode_context_length_buckets": shorter} if shorter else {})


def script(d: Deployment) -> str | LeftOut:
    """Return the script of the server."""
    chip = d.part.chip.name
    if chip not in CHIPS:
        return LeftOut(f"the vLLM-Neuron plugin runs on {' and '.join(CHIPS)}, not on {chip}")
    if d.weights == "int8":
        return LeftOut("the vLLM-Neuron plugin documents no int8 weights")
    if refusal := spanning(d):
        return refusal
    server = VllmServer(
        title=f"The vLLM-Neuron plugin: {d.servers_per_host} x TP{d.tp} on a host of {d.part.name}, as planned.",
        environment={
            "VLLM_NEURON_COMPILATION_TIMEOUT": str(_TIMEOUT_S),
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(_TIMEOUT_S),
            "NEURON_COMPILED_ARTIFACTS": '"${NEURON_COMPILED_ARTIFACTS:-$PWD/compiled-vllm-neuron}"',
        },
        flags=(
            f"--tensor-parallel-size {d.tp}",
            f"--max-num-seqs {d.slots}",
            f"--max-model-len {d.max_model_len}",
            f"--max-num-batched-tokens {d.max_model_len}",
            "--no-enable-chunked-prefill",
            "--no-enable-prefix-caching",
        ),
        additional_config={"neuron_config": neuron_config(d)},
        model_needed="a checkpoint with static FP8 scales in ModelOpt form, which selects FP8"
        if d.weights == "fp8"
        else "",
    )
    return vllm_script(d, server)
