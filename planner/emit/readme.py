"""README of the folder: the promised figures, the files, their commands, and the placeholders to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .deployment import Deployment
from .targets import CHECK, SERVE, TARGETS, Rendered

PLACEHOLDERS = {
    "<MODEL>": "hub id or directory of the checkpoint; the plan was for dimensions alone",
    "<FP8_MODEL>": "checkpoint with static FP8 scales in ModelOpt form, which the plugin loads as FP8",
    "<QUANTIZED_CHECKPOINT>": "path of the 8-bit weights that NxD Inference's `save_quantized_state_dict` has written",
    "<IMAGE_URI>": "the image that `Dockerfile` makes, in a private registry, which is all that SageMaker takes",
    "<EXECUTION_ROLE_ARN>": "role that SageMaker takes on",
    "<CAPACITY_RESERVATION_ID>": "the capacity block that the instances start in",
}

# Command of each file; shown if the file was written.
_COMMANDS = {
    "vllm-nxdi.sh": "./vllm-nxdi.sh # on each host; servers on ports 8000 and up",
    "vllm-neuron.sh": "./vllm-neuron.sh # on each host; servers on ports 8000 and up",
    SERVE: f"./{SERVE} # on a host with enough memory and cores to keep the pace",
    "helm-emulated.yaml": "helm install emulated helm/ -f helm-emulated.yaml",
    "karpenter-nodepool.yaml": "kubectl apply -f karpenter-nodepool.yaml # with an EC2NodeClass called neuron",
    "helm-neuron.yaml": "helm install rehearsal helm/ -f helm-neuron.yaml",
    "Dockerfile": "docker build --build-arg BASE_IMAGE=... .",
    "ecs-task-definition.json": "aws ecs register-task-definition --cli-input-json file://ecs-task-definition.json",
    "main.tf.json": "terraform init && terraform apply # asks for subnets and security groups; makes no load balancer",
    "sagemaker-model.json": "aws sagemaker create-model --cli-input-json file://sagemaker-model.json",
    "sagemaker-endpoint-config.json": "aws sagemaker create-endpoint-config --cli-input-json "
    "file://sagemaker-endpoint-config.json\n"
    "aws sagemaker create-endpoint --endpoint-name {name} --endpoint-config-name {name}",
    "sagemaker-inference-component.json": "aws sagemaker create-inference-component --cli-input-json "
    "file://sagemaker-inference-component.json",
}


def readme(d: Deployment, files: Rendered) -> str:
    """Return the page as Markdown."""
    parts = [
        f"# {d.asked_model} on {d.instances} x {d.part.name}\n\n{_shape(d)}",
        "## The promise\n\n" + "\n".join(_promise(d)),
        "## Files\n\n" + "\n".join(_files(files)),
        "## Commands\n\n```sh\n" + "\n".join(_commands(d, files)) + "\n```",
        *(_check(d) if CHECK in files.texts else []),
        *_to_fill_in(files),
    ]
    return "\n\n".join(parts) + "\n"


def _shape(d: Deployment) -> str:
    return (
        f"{d.dp} server{'s' * (d.dp > 1)} an instance, each on {d.tp} NeuronCores with {d.slots} slots of "
        f"{d.max_model_len} positions, {d.weights} weights. Prompts are padded to {_list(d.prompt_buckets)}, decode is "
        f"compiled for {_list(d.decode_buckets)}. A request goes to the server with the fewest open ones."
    )


def _promise(d: Deployment) -> Iterator[str]:
    p = d.promise
    tokens = f"{p.input_tokens:.0f} tokens in and {p.output_tokens:.0f} out"
    yield f"Means, at {p.request_rate:g} requests a second (Poisson) of {tokens}, over all instances together, by the"
    yield f"planner's calibration {p.calibration}:\n"
    yield "| figure | planned | limit |\n|---|---:|---:|"
    yield f"| TTFT, ms | {p.ttft_s * 1e3:.1f} | {_limit(p.ttft_limit_s)} |"
    yield f"| TPOT, ms | {p.tpot_s * 1e3:.2f} | {_limit(p.tpot_limit_s)} |"
    yield f"| output tokens/s | {p.output_tokens_s:.1f} | |"
    yield f"| share of saturation | {p.load:.0%} | |"
    if p.cost is None or d.price is None:
        yield f"\nNo {d.price_basis} price of {d.part.name} is known, so there is no cost."
    else:
        yield f"| $ an hour, {d.price_basis} | {p.cost.hourly_usd:.4g} | |"
        yield f"| $ per 1M tokens in | {p.cost.input_usd:.4g} | |"
        yield f"| $ per 1M tokens out | {p.cost.output_usd:.4g} | |"
        yield f"| $ per 1M tokens in all | {p.cost.total_usd:.4g} | |"
        yield f"\nPrice: {d.part.prices.region}, {d.price.date}, {d.price.source}."
    if p.misses:
        yield f"\n**The limits are not held**: {'; '.join(p.misses)}."
    if p.extrapolated:
        yield f"\n**Extrapolated**: {p.extrapolated}."
    if p.running.reason:
        yield f"\n**Will it run?** {p.running.sentence}"


def _files(files: Rendered) -> Iterator[str]:
    yield "| file | what it is |\n|---|---|"
    for target in TARGETS:
        if target.path in files.texts:
            yield f"| `{target.path}` | {target.what} |"
    if files.left_out:
        yield "\nNot written:\n"
        yield from (f"- `{path}`: {why.reason}." for path, why in files.left_out.items())


def _commands(d: Deployment, files: Rendered) -> Iterator[str]:
    return (command.format(name=d.name) for path, command in _COMMANDS.items() if path in files.texts)


def _check(d: Deployment) -> Iterator[str]:
    command = f"neuronserve bench serve --scenario {CHECK} --base-url http://HOST:PORT"
    yield f"""\
## Check the promise

```sh
{command} # of the load balancer
{command} --request-rate {d.promise.request_rate / d.instances:g} # of one instance
```

The promise is of means: hold `mean_ttft_ms`, `mean_tpot_ms` and `output_throughput` of the result against it; what was
planned stands in its `benchmark_record`. `request_goodput` counts the requests that are each within the limits. Dollars
are `cost.measured` on the real part, and `cost.modelled` on this server."""


def _to_fill_in(files: Rendered) -> Iterator[str]:
    found = set(re.findall(r"<[A-Z0-9_]+>", "".join(files.texts.values())))
    if rows := [f"- `{name}`: {what}." for name, what in PLACEHOLDERS.items() if name in found]:
        yield "## To fill in\n\n" + "\n".join(rows)


def _limit(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1e3:g}"


def _list(lengths: tuple[int, ...]) -> str:
    return ", ".join(map(str, lengths))
