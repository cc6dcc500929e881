"""The shell script of a vLLM server on Neuron, whichever plugin it runs on: one server for each group of cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from neuronserve.planner.emit.deployment import MODEL_NEEDED, Deployment, LeftOut

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class VllmServer:
    """What differs between the plugins. Values are plain words of a shell, or refer to its variables."""

    title: str
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    additional_config: Json
    model_needed: str = ""  # the checkpoint must be one that the plan's model is not; why
    lead: str = ""  # lines before the command


def spanning(d: Deployment) -> LeftOut | None:
    """Why no script of one host starts the row's servers, if so."""
    cores = d.part.num_cores // d.part.num_hosts
    return None if d.servers_per_host else LeftOut(f"a server of {d.tp} NeuronCores spans hosts of {cores}")


def vllm_script(d: Deployment, server: VllmServer) -> str:
    """The script. `REPLICAS` servers on ports from `PORT`; the first is ready before the others start.

    With one server the cores are left to the runtime, so that a container that was given some devices can use them.
    """
    needed = server.model_needed or ("" if d.checkpoint else MODEL_NEEDED)
    model = f': "${{MODEL:?{needed}}}"' if needed else f"MODEL=${{MODEL:-{quote(d.model)}}}"
    exports = [f"export {name}={value}" for name, value in server.environment.items()]
    flags = "".join(f" \\\n    {flag}" for flag in server.flags)
    head = [
        "#!/usr/bin/env bash",
        f"# {server.title}",
        "set -euo pipefail",
        model,
        'PORT="${PORT:-8000}" # of the first server; the others follow',
        f'REPLICAS="${{REPLICAS:-{d.servers_per_host}}}" # servers here, each on {d.tp} NeuronCores',
        *exports,
        *filter(None, [server.lead]),
        "config=$(cat <<JSON",
        json.dumps(server.additional_config, indent=2),
        "JSON",
        ")",
    ]
    body = f"""\
start() {{
  vllm serve "$MODEL" --port "$((PORT + $1))"{flags} \\
    --additional-config "$config" &
}}
is_ready() {{
  local url="http://127.0.0.1:$PORT/health"
  python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' "$url" 2>/dev/null
}}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'exit 143' TERM INT
for ((group = 0; group < REPLICAS; group++)); do
  if ((REPLICAS > 1)); then
    export NEURON_RT_VISIBLE_CORES={_cores(d.tp)}
  fi
  start "$group"
  # The first compiles what the others load.
  until ((group > 0 || REPLICAS == 1)) || is_ready; do
    kill -0 "$!"
    sleep 1
  done
done
wait -n
"""
    return "\n".join(head) + "\n" + body


def _cores(tp: int) -> str:
    return '"$group"' if tp == 1 else f'"$((group * {tp}))-$((group * {tp} + {tp - 1}))"'
