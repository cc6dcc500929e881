"""Serving software of published rows, by their columns: which stack of server/cost/stacks.py pads and batches them."""

from __future__ import annotations

from dataclasses import replace

from ...server.cost.stacks import STACKS, Stack
from .published import PublishedRow

CONTINUOUS_SDK = 17  # optimum-neuron batches continuously since the releases built on 2.17
SINGLE_BUCKET_SDK = 21  # optimum-neuron on NxD compiles one bucket
MARGIN_SDK = 22  # NxD Inference 0.2 and later take a bucket longer than the prompt (models/model_wrapper.py)


def server_of(row: PublishedRow) -> Stack | None:
    """Return the stack of a row whose software lets requests join a running batch; None for other software.

    AWS's vLLM has buckets unless the row says "one bucket"; any other vLLM compiles one, and so does
    text-generation-inference.
    """
    software = row.label("framework")
    if "vllm-neuron" in software:
        return STACKS["vllm-neuron"]
    if row.sdk < CONTINUOUS_SDK:
        return None
    if "vllm" in software:
        has_buckets = "nxd inference" in software and "optimum" not in software and not _says_one_bucket(row)
        stack = STACKS["nxdi-vllm" if has_buckets else "optimum-vllm"]
        return replace(stack, prompt_margin=stack.prompt_margin if row.sdk >= MARGIN_SDK else 0)
    return STACKS["tgi"] if "tgi" in software else None


def padding_of(row: PublishedRow, batch: int) -> Stack | None:
    """Return a stack that pads as the row's software; None if that has a bucket for each power of two.

    Without a server NxD Inference compiles one bucket: `enable_bucketing` is off in its NeuronConfig.
    """
    software, server = row.label("framework"), server_of(row)
    if server is not None and (server.prompts_fill == "bucket" or batch > 1):
        return server
    is_static = "optimum" in software and ((batch > 1 and row.sdk >= CONTINUOUS_SDK) or row.sdk >= SINGLE_BUCKET_SDK)
    return STACKS["optimum-vllm"] if is_static or "nxd" in software or _says_one_bucket(row) else None


def _says_one_bucket(row: PublishedRow) -> bool:
    said = f"{row.label('framework')}; {row.label('notes')}"
    return any(words in said for words in ("one bucket", "single bucket", "bucketing off"))
