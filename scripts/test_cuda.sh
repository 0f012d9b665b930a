#!/usr/bin/env bash
# Runs the tests of the CUDA kernels natively, on a machine with an NVIDIA GPU, and measures:
#   scripts/test_cuda.sh [--build-only] [FILTER]
# Builds build/cuda/cuda_test and cuda_roofline. They need only a driver, so they can be built on one machine and run on
# another. Exits with 77 if there is no GPU. Once built, it takes minutes:
#  - It runs the tests, and again under compute-sanitizer, if that is installed beside nvcc.
#  - It prints how near attention comes to the memory's bandwidth.
#  - With SMARTKV=PROGRAM (built with -DSMARTKV_CUDA=ON and a LibTorch with CUDA) and MODEL=FILE, it compares answers of
#    servers on the GPU and on the CPU, and measures decoding with several cache formats, with and without CUDA graphs.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

ARCHITECTURES=(80 90 100)

nvcc=$(NVCC=${NVCC:-} scripts/check_cuda.sh --which)
folder=build/cuda
mkdir -p "$folder"
# The tests compare results with those of the CPU's functions and of the host's Sampler.
build release smartkv_cache
step "Compiling the tests"
targets=()
for architecture in "${ARCHITECTURES[@]}"; do targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture"); done
compile() {  # SOURCE...: compiles the sources and sets `objects`
  local source object
  objects=()
  for source in "$@"; do
    object=$folder/$(basename "$source").o
    objects+=("$object")
    "$nvcc" -std=c++20 -O2 -I. -DSMARTKV_NATIVE_CUDA "${targets[@]}" -c "$source" -o "$object" || fail "$source does not compile"
  done
}
link() {  # NAME LIBRARY...
  "$nvcc" "${objects[@]}" "${kernels[@]}" build/release/libsmartkv_{cache,kernels,json}.a "${@:2}" -lxxhash -lpthread \
    -o "$folder/$1" ||
    fail "$folder/$1 does not link"
}
compile kernels/cuda/*.cu kernels/cuda/*.cpp cache/cuda/*.cpp cache/policies/*/cuda/*.cu
kernels=("${objects[@]}")
compile tests/cuda/native/managed_memory.cpp \
  tests/cuda/{attention,attention_mass,head_rows,kv_pages,kv_backend,device_pool,page_stats,device_sampler}_test.cpp \
  tests/cuda/{gate,summary}_jobs_test.cpp \
  engine/sampling/{sampler,row_scan}.cpp
link cuda_test -lgtest_main -lgtest
compile tests/cuda/native/roofline.cpp
link cuda_roofline

if [ "${1:-}" = --build-only ]; then exit 0; fi
if ! nvidia-smi >/dev/null 2>&1; then
  echo "built $folder/cuda_test; no GPU here: not run" >&2
  exit 77
fi
filter=${1:--*/backward}  # the emulator runs each test in two orders of threads; a GPU needs one
step "Running the tests on $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
"$folder/cuda_test" --gtest_filter="$filter"
sanitizer=$(dirname "$nvcc")/compute-sanitizer
if [ -x "$sanitizer" ]; then
  for tool in memcheck racecheck synccheck; do
    step "Running them under compute-sanitizer's $tool"
    timeout 120 "$sanitizer" --tool "$tool" --error-exitcode 1 "$folder/cuda_test" --gtest_filter="$filter" ||
      fail "compute-sanitizer's $tool found something, or took more than two minutes"
  done
fi
step "Measuring how near attention comes to the memory's bandwidth"
"$folder/cuda_roofline"
if [ -n "${SMARTKV:-}" ]; then
  step "Comparing a server on the GPU with one on the CPU"
  scripts/check_gpu.py --smartkv "$SMARTKV" --model "${MODEL:?a model}"
  for policy in full k8v8 k4v4; do
    for graphs in on off; do
      step "Decoding with $policy, CUDA graphs $graphs"
      "$SMARTKV" bench --backend torch --device cuda:0 --cuda-graphs "$graphs" --model "$MODEL" --weights bf16 \
        --prompts 2048 --depths 8192 --batches 1,32 --repetitions 2 --kv-cache "$policy"
    done
  done
fi
