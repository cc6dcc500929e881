#!/usr/bin/env bash
# One instance of the row on this host's CPU, at the modelled accelerator's pace.
set -euo pipefail
: "${MODEL:?hub id or directory of the checkpoint}"
exec neuronserve serve "$MODEL" \
  --device trn2.48xlarge \
  --tensor-parallel-size 32 \
  --data-parallel-size 2 \
  --quantization fp8 \
  --max-model-len 2048 \
  --max-num-seqs 16 \
  --max-num-batched-tokens 1024 \
  --context-encoding-buckets 512,1024 \
  --stack nxdi-vllm \
  --device-memory-utilization 0.9 \
  --pace device \
  --no-enable-prefix-caching \
  "$@"
