"""`neuronserve serve` for one instance of the row, emulated and paced, and values that the chart shares with it."""

from __future__ import annotations

from shlex import quote

from ..plan.weight_types import QUANTIZATION
from .deployment import MODEL_NEEDED, Deployment, LeftOut

MOST_BATCHED_TOKENS, MOST_ENGINES = 131_072, 64  # of the server's settings
_NO_PREFIX_CACHE = "--no-enable-prefix-caching"  # the plan counts on no hits


def batched_tokens(d: Deployment) -> int:
    """Return the tokens of a step with the longest prompt, plus all decodes if the stack mixes both."""
    longest = d.prompt_buckets[-1]
    return min(MOST_BATCHED_TOKENS, longest + d.slots if d.stack.batching == "continuous" else max(longest, d.slots))


def quantization(d: Deployment) -> str:
    """Return the server's name for the format of the weights."""
    return QUANTIZATION[d.weights] or "none"


def serve_arguments(d: Deployment) -> list[str]:
    """Return the arguments of `neuronserve`, from `serve` on."""
    words = [word for name, value in _flags(d).items() for word in (f"--{name}", value)]
    return ["serve", d.model, *words, _NO_PREFIX_CACHE]


def script(d: Deployment) -> str | LeftOut:
    """Return a script with the command; further arguments of the script are passed on."""
    if d.dp > MOST_ENGINES:
        return LeftOut(f"a server has at most {MOST_ENGINES} engines, and the row {d.dp} an instance")
    model = f"MODEL=${{MODEL:-{quote(d.checkpoint)}}}" if d.checkpoint else f': "${{MODEL:?{MODEL_NEEDED}}}"'
    flags = [*(f"--{name} {quote(value)}" for name, value in _flags(d).items()), _NO_PREFIX_CACHE]
    command = " \\\n  ".join(['exec neuronserve serve "$MODEL"', *flags, '"$@"'])
    return (
        "#!/usr/bin/env bash\n"
        "# One instance of the row on this host's CPU, at the modelled accelerator's pace.\n"
        f"set -euo pipefail\n{model}\n{command}\n"
    )


def _flags(d: Deployment) -> dict[str, str]:
    flags: dict[str, object] = {
        "device": d.part.name,
        "tensor-parallel-size": d.tp,
        "data-parallel-size": d.dp,
        "quantization": quantization(d),
        "max-model-len": d.max_model_len,
        "max-num-seqs": d.slots,
        "max-num-batched-tokens": batched_tokens(d),
        "context-encoding-buckets": ",".join(map(str, d.prompt_buckets)),
        "stack": d.stack.name,
        "device-memory-utilization": d.device_memory_utilization,
        "pace": "device",
    }
    if d.is_listed_price:
        flags["price-basis"] = d.price_basis
    elif d.price is not None:
        flags["usd-per-hour"] = d.price.usd
    return {name: str(value) for name, value in flags.items()}
