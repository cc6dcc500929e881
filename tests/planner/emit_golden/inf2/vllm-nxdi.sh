#!/usr/bin/env bash
# vLLM on NxD Inference: 3 x TP8 on a host of inf2.48xlarge, as planned.
set -euo pipefail
MODEL=${MODEL:-meta-llama/Meta-Llama-3-8B}
PORT="${PORT:-8000}" # of the first server; the others follow
REPLICAS="${REPLICAS:-3}" # servers here, each on 8 NeuronCores
export VLLM_NEURON_FRAMEWORK=neuronx-distributed-inference
export NEURON_COMPILED_ARTIFACTS="${NEURON_COMPILED_ARTIFACTS:-$PWD/compiled-nxdi}"
config=$(cat <<JSON
{
  "override_neuron_config": {
    "enable_bucketing": true,
    "context_encoding_buckets": [
      512,
      1024
    ],
    "token_generation_buckets": [
      128,
      256,
      512,
      1024,
      2048
    ],
    "on_device_sampling_config": {
      "dynamic": true
    }
  }
}
JSON
)
start() {
  vllm serve "$MODEL" --port "$((PORT + $1))" \
    --tensor-parallel-size 8 \
    --max-num-seqs 16 \
    --max-model-len 2048 \
    --block-size 32 \
    --num-gpu-blocks-override 16 \
    --no-enable-prefix-caching \
    --additional-config "$config" &
}
is_ready() {
  local url="http://127.0.0.1:$PORT/health"
  python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' "$url" 2>/dev/null
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'exit 143' TERM INT
for ((group = 0; group < REPLICAS; group++)); do
  if ((REPLICAS > 1)); then
    export NEURON_RT_VISIBLE_CORES="$((group * 8))-$((group * 8 + 7))"
  fi
  start "$group"
  # The first compiles what the others load.
  until ((group > 0 || REPLICAS == 1)) || is_ready; do
    kill -0 "$!"
    sleep 1
  done
done
wait -n
