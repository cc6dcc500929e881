#!/usr/bin/env bash
# One instance of the row on this host's CPU, at the modelled accelerator's pace.
set -euo pipefail
MODEL=${MODEL:-meta-llama/Meta-Llama-3-8B}
exec neuronserve serve "$MODEL" \
  --device inf2.48xlarge \
  --tensor-parallel-size 8 \
  --data-parallel-size 3 \
  --quantization none \
  --max-model-len 2048 \
  --max-num-seqs 16 \
  --max-num-batched-tokens 1024 \
  --context-encoding-buckets 512,1024 \
  --stack nxdi-vllm \
  --device-memory-utilization 0.9 \
  --pace device \
  --price-basis on_demand \
  --no-enable-prefix-caching \
  "$@"
