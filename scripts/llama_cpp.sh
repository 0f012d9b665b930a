# Sourced after setup.sh by the scripts that measure llama.cpp or OpenVINO beside SmartKV. These scripts run in the root
# of the repository.

# read_comparison ARGUMENT...: sets SHAPE from --shape, MODELS from --models, LABELS from --weights (if given), and REST
# to the other arguments.
read_comparison() {
  SHAPE= MODELS= LABELS=${LABELS:-} REST=()
  while [ $# -gt 0 ]; do
    case $1 in
      --shape) SHAPE=${2:?--shape: expected 1b, 3b or 8b} && shift ;;
      --models) MODELS=${2:?--models: expected files or shapes} && shift ;;
      --weights) LABELS=${2:?--weights: expected formats} && shift ;;
      *) REST+=("$1") ;;
    esac
    shift
  done
}

# Sets LLAMA to a folder whose bin/ holds the programs of llama.cpp. That is $LLAMA_CPP_DIR, or a folder outside the
# repository, in which llama.cpp is built once from its PyPI source package (about 10 minutes on 2 cores).
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
  make_venv
  .venv/bin/python -m pip download -q --no-deps --no-binary :all: -d "$LLAMA" llama-cpp-python==0.3.36 >&2 ||
    fail "'pip download llama-cpp-python' failed: set LLAMA_CPP_DIR to a build of llama.cpp"
  tar xzf "$LLAMA"/llama_cpp_python-0.3.36.tar.gz -C "$LLAMA"
  cmake -S "$LLAMA/llama_cpp_python-0.3.36/vendor/llama.cpp" -B "$LLAMA" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >&2
  ninja -C "$LLAMA" llama-bench llama-batched-bench llama-server llama-quantize >&2
}

# Sets BF16 to a BF16 file with the weights of the default model. SmartKV computes with the same weights.
find_bf16_model() {
  BF16=$LLAMA_CACHE/SmolLM2-135M-Instruct.BF16.gguf
  quantize_gguf "$MODEL" "$BF16" BF16
}

# Makes .venv/bin/python import gguf and numpy.
find_gguf() {
  make_venv
  .venv/bin/python -c 'import gguf, numpy' 2>/dev/null || .venv/bin/python -m pip install -q gguf numpy >&2 ||
    fail "'pip install gguf numpy' failed"
}

# Sets MODEL to $1 if that is a file, else to a model of the shape $1 (SHAPE or SHAPE:LAYERS of make_random_gguf.py),
# which it makes unless it exists.
find_model() {
  MODEL=$1
  [ ! -f "$1" ] || return 0
  local folder=${SMARTKV_SIZES:-$LLAMA_CACHE} layers=
  [[ $1 != *:* ]] || layers=${1#*:}
  MODEL=$folder/random-${1/:/-}.Q4_K_M.gguf
  [ ! -f "$MODEL" ] || return 0
  mkdir -p "$folder"
  find_gguf
  step "Making a model of shape $1"
  .venv/bin/python scripts/make_random_gguf.py "${1%%:*}" "$MODEL.part" ${layers:+--layers "$layers"} &&
    mv "$MODEL.part" "$MODEL"
}

# Sets MODEL to the folder of a LLaMA of shape $1 with random weights, and BF16 to a GGUF file with the same weights.
# Makes them if they do not exist.
find_sized_model() {
  local folder=${SMARTKV_SIZES:-$LLAMA_CACHE}
  MODEL=$folder/random-$1 BF16=$folder/random-$1.BF16.gguf
  mkdir -p "$folder"
  find_gguf
  if [ ! -f "$MODEL/model.safetensors" ]; then
    step "Making a LLaMA of shape $1"
    rm -rf "$MODEL.part" && .venv/bin/python scripts/make_model.py "$1" "$MODEL.part" && mv "$MODEL.part" "$MODEL"
  fi
  [ -f "$BF16" ] && return
  step "Writing its weights as GGUF for llama.cpp"
  .venv/bin/python scripts/make_gguf.py "$MODEL" "$BF16.part" && mv "$BF16.part" "$BF16"
}

# Converts the GGUF file $1 to llama.cpp's format $3 and writes it as $2, unless $2 exists.
quantize_gguf() {
  [ -f "$2" ] && return
  step "Writing $2 for llama.cpp"
  mkdir -p "$(dirname "$2")"
  "$LLAMA/bin/llama-quantize" --allow-requantize "$1" "$2.part" "$3" >/dev/null 2>&1 ||
    fail "llama-quantize could not write $2"
  mv "$2.part" "$2"
}
