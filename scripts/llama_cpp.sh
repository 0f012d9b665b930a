# Sourced after setup.sh by the scripts that measure llama.cpp beside SmartKV. Run from the repository's root.

# Sets LLAMA to a folder whose bin/ holds the programs of llama.cpp: $LLAMA_CPP_DIR, else one outside the repository,
# where it is built from its PyPI source package (about 10 minutes on 2 cores, once).
find_llama_cpp() {
  LLAMA_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/smartkv
  LLAMA=${LLAMA_CPP_DIR:-$LLAMA_CACHE/llama.cpp}
  local program missing=
  for program in llama-bench llama-batched-bench llama-server llama-quantize; do
    [ -x "$LLAMA/bin/$program" ] || missing=yes
  done
  [ -n "$missing" ] || return 0
  step "Building llama.cpp in $LLAMA"
  mkdir -p "$LLAMA"
  [ -x .venv/bin/python ] || python3 -m venv .venv || fail "'python3 -m venv .venv' failed"
  .venv/bin/python -m pip download -q --no-deps --no-binary :all: -d "$LLAMA" llama-cpp-python==0.3.36 >&2 ||
    fail "'pip download llama-cpp-python' failed: set LLAMA_CPP_DIR to a build of llama.cpp"
  tar xzf "$LLAMA"/llama_cpp_python-0.3.36.tar.gz -C "$LLAMA"
  cmake -S "$LLAMA/llama_cpp_python-0.3.36/vendor/llama.cpp" -B "$LLAMA" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >&2
  ninja -C "$LLAMA" llama-bench llama-batched-bench llama-server llama-quantize >&2
}

# Sets BF16 to the default model's weights as a BF16 file, which is what SmartKV computes with.
find_bf16_model() {
  BF16=$LLAMA_CACHE/SmolLM2-135M-Instruct.BF16.gguf
  [ -f "$BF16" ] && return
  step "Writing the same weights as BF16 for llama.cpp"
  mkdir -p "$LLAMA_CACHE"
  "$LLAMA/bin/llama-quantize" --allow-requantize "$MODEL" "$BF16.part" BF16 >/dev/null 2>&1 ||
    fail "llama-quantize could not write $BF16"
  mv "$BF16.part" "$BF16"
}
