"""Shell script of vLLM servers on Neuron, for both plugins: one server for each group of cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from .deployment import MODEL_NEEDED, Deployment, LeftOut

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class VllmServer:
    """Differences between the plugins. Values are plain shell words, or refer to shell variables."""

    title: str
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    additional_config: Json
    model_needed: str = ""  # which other checkpoint is needed instead of the plan's model, if any
    lead: str = ""  # lines before the command


def spanning(d: Deployment) -> LeftOut | None:
    """Return why no script of one host can start the row's servers; None if one can."""
    cores = d.part.num_cores // d.part.num_hosts
    return None if d.servers_per_host else LeftOut(f"a server of {d.tp} NeuronCores spans hosts of {cores}")


def vllm_script(d: Deployment, server: VllmServer) -> str:
    """Return the script. It starts `REPLICAS` servers on ports from `PORT`; the others wait until the first is ready.

    With one server the runtime chooses the cores, so that a container can use the devices that it was given.
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
