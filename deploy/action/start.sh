#!/usr/bin/env bash
# Starts a server that outlives this step, waits until it is ready, and passes its address to the job. It ends with the job.
set -euo pipefail

ready="$RUNNER_TEMP/neuronserve.json"
log="$RUNNER_TEMP/neuronserve.log"
read -r -a extra <<< "${ARGS:-}"

nohup "$PYTHON" -P -m neuronserve serve ${MODEL:+"$MODEL"} "${extra[@]}" --port 0 --ready-file "$ready" > "$log" 2>&1 &
pid=$!

deadline=$((SECONDS + ${TIMEOUT_S:-300}))
until [[ -e $ready ]]; do
  if ! kill -0 "$pid" 2> /dev/null || ((SECONDS >= deadline)); then
    echo "::error::neuronserve was not ready; its log ends with"
    tail -n 20 "$log"
    kill "$pid" 2> /dev/null || true
    exit 1
  fi
  sleep 0.2
done

"$PYTHON" - "$ready" "$log" << 'PYTHON'
import json, os, sys

ready, log = sys.argv[1:]
with open(ready) as file:
    said = json.load(file)
base_url, key = said["url"] + "/v1", "none"
lines = {
    "GITHUB_ENV": {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key},
    "GITHUB_OUTPUT": {"base-url": base_url, "model": said["model"], "api-key": key, "log": log},
}
for variable, pairs in lines.items():
    with open(os.environ[variable], "a") as file:
        file.writelines(f"{name}={value}\n" for name, value in pairs.items())
print(f"neuronserve is ready: {base_url}, model {said['model']}, pid {said['pid']}")
PYTHON
