#!/usr/bin/env bash
# The vLLM-Neuron plugin: 2 x TP32 on a host of trn2.48xlarge, as planned.
set -euo pipefail
: "${MODEL:?a checkpoint with static FP8 scales in ModelOpt form, which selects FP8}"
PORT="${PORT:-8000}" # of the first server; the others follow
REPLICAS="${REPLICAS:-2}" # servers here, each on 32 NeuronCores
export VLLM_NEURON_COMPILATION_TIMEOUT=1200
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1200
export NEURON_COMPILED_ARTIFACTS="${NEURON_COMPILED_ARTIFACTS:-$PWD/compiled-vllm-neuron}"
config=$(cat <<JSON
{
  "neuron_config": {
    "num_batched_tokens_buckets": [
      512,
      1024,
      2048
    ],
    "num_seqs_buckets": [
      16
    ],
    "on_device_sampling_config": {},
    "decode_context_length_buckets": [
      128,
      256,
      512,
      1024
    ]
  }
}
JSON
)
start() {
  vllm serve "$MODEL" --port "$((PORT + $1))" \
    --tensor-parallel-size 32 \
    --max-num-seqs 16 \
    --max-model-len 2048 \
    --max-num-batched-tokens 2048 \
    --no-enable-chunked-prefill \
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
    export NEURON_RT_VISIBLE_CORES="$((group * 32))-$((group * 32 + 31))"
  fi
  start "$group"
  # The first compiles what the others load.
  until ((group > 0 || REPLICAS == 1)) || is_ready; do
    kill -0 "$!"
    sleep 1
  done
done
wait -n
