#!/usr/bin/env bash
# Measures SmartKV and llama.cpp on the same weights in one sitting, in alternation, and prints one table of ratios.
#   scripts/compare_llama_cpp.sh [--rounds N] [--quick] [--json FILE]
# llama.cpp is found at $LLAMA_CPP_DIR (its bin/ holds llama-bench), or built from its PyPI source package outside the
# repository (about 10 minutes on 2 cores, once).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
build release smartkv
fetch_model

cache=${XDG_CACHE_HOME:-$HOME/.cache}/smartkv
llama=${LLAMA_CPP_DIR:-$cache/llama.cpp}
if [ ! -x "$llama/bin/llama-batched-bench" ]; then
  step "Building llama.cpp in $llama"
  mkdir -p "$llama"
  [ -x .venv/bin/python ] || python3 -m venv .venv || fail "'python3 -m venv .venv' failed"
  .venv/bin/python -m pip download -q --no-deps --no-binary :all: -d "$llama" llama-cpp-python==0.3.36 >&2 ||
    fail "'pip download llama-cpp-python' failed: set LLAMA_CPP_DIR to a build of llama.cpp"
  tar xzf "$llama"/llama_cpp_python-0.3.36.tar.gz -C "$llama"
  cmake -S "$llama/llama_cpp_python-0.3.36/vendor/llama.cpp" -B "$llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >&2
  ninja -C "$llama" llama-bench llama-batched-bench llama-server llama-quantize >&2
fi
bf16=$cache/SmolLM2-135M-Instruct.BF16.gguf
if [ ! -f "$bf16" ]; then
  step "Writing the same weights as BF16 for llama.cpp"
  mkdir -p "$cache"
  "$llama/bin/llama-quantize" --allow-requantize "$MODEL" "$bf16" BF16 >/dev/null 2>&1
fi
exec python3 scripts/compare_llama_cpp.py --llama "$llama/bin" --smartkv build/release/smartkv \
  --bf16 "$bf16" --q4 "$MODEL" "$@"
