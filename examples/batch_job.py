"""A batch: a file of requests is uploaded, processed in the background, and its answers are fetched.

It needs a server with a data directory (`neuronserve serve --data-dir data`).

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/batch_job.py 7+5 12+30
"""

from __future__ import annotations

import json
import sys
import time

from openai import OpenAI

POLL_S = 0.5


def lines(model: str, sums: list[str]) -> bytes:
    """Return the batch's file: one request a line, each with its own name."""
    body = {"model": model, "temperature": 0, "max_tokens": 60}
    requests = (
        {
            "custom_id": each,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**body, "messages": [{"role": "user", "content": f"What is {each.replace('+', ' + ')}?"}]},
        }
        for each in sums
    )
    return "".join(json.dumps(request) + "\n" for request in requests).encode()


def main(sums: list[str]) -> None:
    client = OpenAI()  # address and key are in OPENAI_BASE_URL and OPENAI_API_KEY
    model = client.models.list().data[0].id
    file = client.files.create(file=("sums.jsonl", lines(model, sums)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.status not in {"completed", "failed", "expired", "cancelled"}:
        time.sleep(POLL_S)
        batch = client.batches.retrieve(batch.id)
    if batch.status != "completed" or batch.output_file_id is None:
        raise SystemExit(f"the batch is {batch.status}: {batch.errors}")
    for line in client.files.content(batch.output_file_id).text.splitlines():
        answer = json.loads(line)
        print(f"{answer['custom_id']}: {answer['response']['body']['choices'][0]['message']['content']}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["7+5", "12+30"])
