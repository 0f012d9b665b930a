#!/usr/bin/env bash
# Runs the tests of kernels/cuda natively, on a machine with an NVIDIA GPU: scripts/test_cuda.sh [--build-only] [FILTER]
# Builds build/cuda/cuda_test, which needs nothing but a driver, so it can be built on one machine and run on another.
# Exits 77 where there is no GPU. With compute-sanitizer beside nvcc the tests run once more under it.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

ARCHITECTURES=(80 90 100)

nvcc=$(NVCC=${NVCC:-} scripts/check_cuda.sh --which)
folder=build/cuda
mkdir -p "$folder"
# The tests compare with the CPU's functions.
build release smartkv_kernels
step "Compiling the tests"
targets=()
for architecture in "${ARCHITECTURES[@]}"; do targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture"); done
objects=()
for source in kernels/cuda/*.cu kernels/cuda/*.cpp tests/cuda/native/*.cpp \
  tests/cuda/{attention,attention_mass,kv_pages}_test.cpp; do
  object=$folder/$(basename "$source").o
  objects+=("$object")
  "$nvcc" -std=c++20 -O2 -I. -DSMARTKV_NATIVE_CUDA "${targets[@]}" -c "$source" -o "$object" || fail "$source does not compile"
done
"$nvcc" "${objects[@]}" build/release/libsmartkv_kernels.a -lgtest_main -lgtest -lpthread -o "$folder/cuda_test" ||
  fail "$folder/cuda_test does not link"

if [ "${1:-}" = --build-only ]; then exit 0; fi
if ! nvidia-smi >/dev/null 2>&1; then
  echo "built $folder/cuda_test; no GPU here: not run" >&2
  exit 77
fi
filter=${1:-*}
step "Running the tests on $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
"$folder/cuda_test" --gtest_filter="$filter"
sanitizer=$(dirname "$nvcc")/compute-sanitizer
if [ -x "$sanitizer" ]; then
  for tool in memcheck racecheck synccheck; do
    step "Running them under compute-sanitizer's $tool"
    "$sanitizer" --tool "$tool" --error-exitcode 1 "$folder/cuda_test" --gtest_filter="$filter"
  done
fi
