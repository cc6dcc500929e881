"""`helm test`: the server is ready, knows its model, and streams a chat to its end. Exit code 0, or what went wrong."""

import json
import os
import urllib.request

base, model = os.environ["BASE_URL"], os.environ["MODEL"]
key = os.environ.get("API_KEYS", "").split(",")[0].strip()
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def ask(path: str, body: object = None) -> bytes:
    """The answer to a GET, or to a POST of `body`; raises on any status but 200."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(base + path, data, headers), timeout=60) as response:
        return bytes(response.read())


ask("/health/ready")
names = [entry["id"] for entry in json.loads(ask("/v1/models"))["data"]]
assert model in names, f"served models are {names}, not {model}"
messages = [{"role": "user", "content": "Hello!"}]
stream = ask("/v1/chat/completions", {"model": model, "messages": messages, "stream": True, "max_tokens": 4})
events = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]
assert events[-1:] == [b"[DONE]"], f"the stream ends with {events[-1:]}"
assert not any("error" in json.loads(event) for event in events[:-1]), events[-2]
print(f"{model}: {len(events) - 1} events")
