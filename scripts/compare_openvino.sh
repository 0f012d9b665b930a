#!/usr/bin/env bash
# Measures SmartKV and OpenVINO GenAI in alternation on the same weights, and prints one table of ratios.
#   scripts/compare_openvino.sh [--shape 1b|3b] [--weights fp16,int8,int4] [--kv u8,f16] [--prompts N,...] [--rounds N] [--json FILE]
# --shape: use a LLaMA of that size with random weights (make_model.py) instead of the default model.
# --weights: OpenVINO's formats, default all three. SmartKV runs bf16, int8 and int4 beside fp16, int8 and int4.
# --kv: the precision of OpenVINO's cache.
# OpenVINO GenAI and its converters are installed from PyPI into an environment in the user's cache (2 GB). The
# converted models are kept there, too.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/llama_cpp.sh

LABELS=fp16,int8,int4
read_comparison "$@"

install_packages
build release smartkv
LLAMA_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/smartkv
OPENVINO=${OPENVINO_DIR:-$LLAMA_CACHE/openvino}
mkdir -p "$OPENVINO"
if ! "$OPENVINO/venv/bin/python" -c 'import openvino_genai, optimum.intel, accelerate' 2>/dev/null; then
  step "Installing OpenVINO GenAI in $OPENVINO"
  python3 -m venv "$OPENVINO/venv"
  "$OPENVINO/venv/bin/python" -m pip install -q openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 nncf \
    'optimum-intel[openvino]' gguf accelerate >&2 || fail "'pip install openvino-genai optimum-intel' failed"
fi
if [ -n "$SHAPE" ]; then
  find_sized_model "$SHAPE"
  NAME=random-$SHAPE FOLDER=$MODEL FILE=$BF16
else
  fetch_model
  NAME=SmolLM2-135M-Instruct FOLDER=$OPENVINO/$NAME FILE=$MODEL
  if [ ! -d "$FOLDER" ]; then
    step "Writing $NAME as a Hugging Face folder"
    "$OPENVINO/venv/bin/python" scripts/compare_openvino.py unpack "$MODEL" "$FOLDER.part" >&2 && mv "$FOLDER.part" "$FOLDER"
  fi
fi
PAIRS=()
for label in $(tr , ' ' <<<"$LABELS"); do
  case $label in
    fp16) OURS=bf16 ;;
    int8 | int4) OURS=$label ;;
    *) fail "--weights: expected some of fp16, int8, int4, found $label" ;;
  esac
  if [ ! -d "$OPENVINO/$NAME.$label" ]; then
    step "Converting $NAME to OpenVINO $label"
    GROUPING=()
    [ "$label" = int4 ] && GROUPING=(--group-size 64)  # the default, 128, does not divide the rows of the default model
    "$OPENVINO/venv/bin/optimum-cli" export openvino --model "$FOLDER" --task text-generation-with-past --weight-format "$label" \
      ${GROUPING[@]+"${GROUPING[@]}"} "$OPENVINO/$NAME.$label.part" >&2 || fail "optimum-cli could not convert $NAME"
    mv "$OPENVINO/$NAME.$label.part" "$OPENVINO/$NAME.$label"
  fi
  PAIRS+=(--pair "$label" "$OURS" "$OPENVINO/$NAME.$label")
done
exec "$OPENVINO/venv/bin/python" scripts/compare_openvino.py measure --smartkv build/release/smartkv --model "$FILE" "${PAIRS[@]}" \
  ${REST[@]+"${REST[@]}"}
