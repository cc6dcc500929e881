#!/usr/bin/env bash
# vLLM on NxD Inference: 2 x TP32 on a host of trn2.48xlarge, as planned.
set -euo pipefail
: "${MODEL:?hub id or directory of the checkpoint}"
PORT="${PORT:-8000}" # of the first server; the others follow
REPLICAS="${REPLICAS:-2}" # servers here, each on 32 NeuronCores
export VLLM_NEURON_FRAMEWORK=neuronx-distributed-inference
export NEURON_COMPILED_ARTIFACTS="${NEURON_COMPILED_ARTIFACTS:-$PWD/compiled-nxdi}"
export NEURON_RT_VIRTUAL_CORE_SIZE=2
export XLA_HANDLE_SPECIAL_SCALAR=1
export UNSAFE_FP8FNCAST=1
# vLLM cannot compile fp8: let NxD Inference fill NEURON_COMPILED_ARTIFACTS.
QUANTIZED_CHECKPOINT="${QUANTIZED_CHECKPOINT:?weights that save_quantized_state_dict has written}"
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
    },
    "quantized": true,
    "quantized_checkpoints_path": "$QUANTIZED_CHECKPOINT",
    "quantization_dtype": "f8e4m3",
    "quantization_type": "per_channel_symmetric"
  }
}
JSON
)
start() {
  vllm serve "$MODEL" --port "$((PORT + $1))" \
    --tensor-parallel-size 32 \
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
