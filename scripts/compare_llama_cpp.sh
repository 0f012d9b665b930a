#!/usr/bin/env bash
# Measures SmartKV and llama.cpp in alternation on the same files, and prints one table of ratios.
#   scripts/compare_llama_cpp.sh [--shape 1b|3b|8b] [--weights LABEL,...] [--rounds N] [--quick] [--prompts N,...] [--depths N,...]
#                                [--batches N,...] [--repetitions N] [--no-serving] [--json FILE]
#   scripts/compare_llama_cpp.sh --models FILE.gguf|SHAPE[:LAYERS],... [the same options but --shape and --weights]
# --shape: use a LLaMA of that size with random weights (make_model.py) instead of the default model. It is made once,
#   with llama.cpp's BF16, Q8_0, Q4_0 and Q4_K_M files, in $SMARTKV_SIZES (default: the user's cache; 8b: about 50 GB).
# --weights: some of bf16, Q8_0, Q4_0, Q4_K_M with --shape, or of bf16, Q4_1 for the default model; default: all.
# --models: measure these files with the default flags of both programs. A SHAPE of make_random_gguf.py stands for a model
#   with random weights in Q4_K_M, with fewer layers if LAYERS is given, which is made once in $SMARTKV_SIZES.
# llama.cpp is taken from $LLAMA_CPP_DIR, whose bin/ has to contain llama-bench. Otherwise it is built once from its
# PyPI source package, outside the repository (about 10 minutes on 2 cores).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/llama_cpp.sh

LABELS=
read_comparison "$@"

install_packages
build release smartkv
find_llama_cpp
PAIRS=()
if [ -n "$MODELS" ]; then
  [ -z "$SHAPE$LABELS" ] || fail "--models: expected no --shape or --weights beside it"
  for model in $(tr , ' ' <<<"$MODELS"); do
    find_model "$model"
    PAIRS+=(--pair "$(basename "$MODEL" .gguf)" auto "$MODEL")
  done
elif [ -n "$SHAPE" ]; then
  find_sized_model "$SHAPE"
  KNOWN=bf16,Q8_0,Q4_0,Q4_K_M
else
  fetch_model
  find_bf16_model
  KNOWN=bf16,Q4_1
fi
[ -n "$MODELS" ] || for label in $(tr , ' ' <<<"${LABELS:-$KNOWN}"); do
  [[ ,$KNOWN, == *",$label,"* ]] || fail "--weights: expected some of $KNOWN, found $label"
  case $label in
    bf16) OURS=bf16 FILE=$BF16 ;;
    Q4_1) OURS=int4 FILE=$MODEL ;;
    *) OURS=file FILE=${BF16%.BF16.gguf}.$label.gguf ;;
  esac
  quantize_gguf "$BF16" "$FILE" "$label"
  PAIRS+=(--pair "$label" "$OURS" "$FILE")
done
exec python3 scripts/compare_llama_cpp.py --llama "$LLAMA/bin" --smartkv build/release/smartkv "${PAIRS[@]}" \
  ${REST[@]+"${REST[@]}"}
