#!/usr/bin/env bash
# Goodput over HTTP at fixed cache memory, weights of bf16: SmartKV's policies and llama-server with as many bytes of f16 and q8_0 KV
# cache, in turn, in one sitting. Prints one table.
#   scripts/bench_serving.sh [--cases a,b,...] [--repetitions N] [--requests N] [--policies LIST] [--plot FILE.svg]
#                            [--json FILE] [-- other options of smartkv bench --serving]
# llama.cpp is found or built as for compare_llama_cpp.sh.
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
