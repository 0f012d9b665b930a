#!/usr/bin/env bash
# Measures goodput over HTTP at fixed cache memory, with bf16 weights. It alternates between SmartKV's policies and
# llama-server with the same number of bytes of f16 and q8_0 KV cache. Prints one table.
#   scripts/bench_serving.sh [--cases a,b,...] [--repetitions N] [--requests N] [--policies LIST] [--plot FILE.svg]
#                            [--json FILE] [-- other options of smartkv bench --serving]
# llama.cpp is found or built as in compare_llama_cpp.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/llama_cpp.sh

install_packages
build release smartkv
fetch_model
find_llama_cpp
find_bf16_model
exec python3 scripts/bench_serving.py --llama-server "$LLAMA/bin/llama-server" --smartkv build/release/smartkv \
  --bf16 "$BF16" --model "$MODEL" "$@"
