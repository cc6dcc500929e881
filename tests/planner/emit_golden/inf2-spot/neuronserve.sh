#!/usr/bin/env bash
# One instance of the row on this host's CPU, at the modelled accelerator's pace.
set -euo pipefail
MODEL=${MODEL:-meta-llama/Meta-Llama-3-8B}
exec neuronserve serve "$MODEL" \
  --device inf2.xlarge \
  --tensor-parallel-size 2 \
  --data-parallel-size 1 \
  --quantization int8-weight-only \
  --max-model-len 2048 \
  --max-num-seqs 16 \
  --max-num-batched-tokens 2064 \
  --context-encoding-buckets 2048 \
  --stack ideal \
  --device-memory-utilization 0.9 \
  --pace device \
  --usd-per-hour 0.25 \
  --no-enable-prefix-caching \
  "$@"
