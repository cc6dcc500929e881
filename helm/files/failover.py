"""`helm test` of a router: texts do not change while one of the servers is ended. Exit code 0, or what went wrong."""

import json
import os
import ssl
import threading
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

base, model, pods = os.environ["BASE_URL"], os.environ["MODEL"], os.environ["PODS"]
key = os.environ.get("API_KEYS", "").split(",")[0].strip()
account = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
api = os.environ.get("KUBERNETES_API", "https://kubernetes.default.svc")
trusted = ssl.create_default_context(cafile=str(account / "ca.crt")) if api.startswith("https:") else None
selector = ",".join(f"{name}={value}" for name, value in json.loads(os.environ["SELECTOR"]).items())
NUM_STREAMS, NUM_TOKENS = 8, 400
begun = threading.Semaphore(0)


def kubernetes(method: str, path: str, body: object = None) -> dict:
    """The API server's answer; raises on an error."""
    headers = {"Authorization": f"Bearer {(account / 'token').read_text()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(api + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30, context=trusted) as response:
        return json.load(response)


def text(seed: int) -> str:
    """A streamed text; raises when it does not come to its end."""
    body = {"model": model, "prompt": f"{seed} is", "seed": seed, "max_tokens": NUM_TOKENS, "stream": True}
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(
        base + "/v1/completions", json.dumps(body | {"ignore_eos": True}).encode(), headers
    )
    parts = []
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            event = line.strip().removeprefix(b"data: ")
            if event == b"[DONE]":
                return "".join(parts)
            if event:
                assert b'"error"' not in event, event
                parts += [choice["text"] for choice in json.loads(event)["choices"]]
                if len(parts) == 1:
                    begun.release()
    raise AssertionError(f"stream {seed} ends after {len(parts)} events")


def is_ready(pod: dict) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


listed = kubernetes("GET", f"{pods}?labelSelector={urllib.parse.quote(selector)}")["items"]
ready = [pod["metadata"]["name"] for pod in listed if is_ready(pod)]
if len(ready) < 2:
    print(f"not tried: {len(ready)} server is ready, and none would be left to go on")
    raise SystemExit
seeds = range(NUM_STREAMS)
with ThreadPoolExecutor(NUM_STREAMS) as threads:
    before = list(threads.map(text, seeds))
    begun = threading.Semaphore(0)
    running = [threads.submit(text, seed) for seed in seeds]
    for _ in seeds:
        assert begun.acquire(timeout=120), "a stream has not begun"
    kubernetes("DELETE", f"{pods}/{ready[0]}", {"gracePeriodSeconds": 1})
    num_open = sum(not each.done() for each in running)
    after = [each.result() for each in running]
changed = [seed for seed in seeds if before[seed] != after[seed]]
assert not changed, f"texts {changed} differ from those before"
print(f"{model}: {ready[0]} has ended, {num_open} of {NUM_STREAMS} open streams went on")
