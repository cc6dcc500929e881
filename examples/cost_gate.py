"""A cost test for CI: it fails if a million tokens cost over 10 % more on the modelled accelerator than the baseline.

The price comes from the server's cost model, not from a clock. Each request samples several answers, which are one
batch on any runner. The remaining noise is about 1 %: the time at which the batch is complete.

    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none
    python examples/cost_gate.py --update baseline.json    # once, into the repository
    python examples/cost_gate.py baseline.json             # in CI: exit code 1 if the cost has risen
"""

from __future__ import annotations

import argparse
import json
import uuid
from pathlib import Path
from typing import Any

from openai import OpenAI

TOLERANCE = 0.10
NUM_ANSWERS = 4  # of each prompt, computed together
PROMPTS = (  # use those of your application
    "Tell me a story about a dragon.",
    "Summarize in one sentence: Nora is a baker. One day Nora lost a key and looked for it everywhere.",
    "What is 12 + 7?",
)


def measure(client: OpenAI, model: str, max_tokens: int) -> dict[str, Any]:
    """Return dollars for a million output tokens, and the number of measured tokens."""
    usd, num_tokens = 0.0, 0
    for prompt in PROMPTS:
        chat = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            n=NUM_ANSWERS,
            max_tokens=max_tokens,
            temperature=0,
            extra_headers={"X-Neuronserve-Usage": "true"},
            extra_body={"ignore_eos": True, "cache_salt": uuid.uuid4().hex},  # so that no prompt is cached
        )
        assert chat.usage is not None
        usd += chat.usage.model_dump()["neuronserve"]["cost_usd"]
        num_tokens += chat.usage.completion_tokens
    return {"usd_per_million_output_tokens": 1e6 * usd / num_tokens, "output_tokens": num_tokens}


def main() -> int:
    parser = argparse.ArgumentParser(description="Fails if a million tokens cost over 10 % more than before.")
    parser.add_argument("baseline", type=Path, help="file with the figure to compare with")
    parser.add_argument("--update", action="store_true", help="write the file instead")
    parser.add_argument("--max-tokens", type=int, default=64, help="length of each answer")
    arguments = parser.parse_args()
    client = OpenAI()  # address and key are in OPENAI_BASE_URL and OPENAI_API_KEY
    found = measure(client, client.models.list().data[0].id, arguments.max_tokens)
    now = found["usd_per_million_output_tokens"]
    if arguments.update:
        arguments.baseline.write_text(json.dumps(found, indent=1) + "\n")
        print(f"${now:.4f} for a million output tokens, kept in {arguments.baseline}")
        return 0
    before = json.loads(arguments.baseline.read_text())["usd_per_million_output_tokens"]
    rise = now / before - 1
    print(f"${now:.4f} for a million output tokens, {rise:+.1%} to the baseline's ${before:.4f}")
    return int(rise > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
