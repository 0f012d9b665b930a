#!/usr/bin/env bash
# Takes a fresh Debian 12 machine to passed tests: scripts/test.sh [preset...]
# Presets: release (the default), asan and cuda run every test; tsan runs the tests in which threads interact.
# Two labels are left out:
#  - clients: tests that install third-party clients. Run them with scripts/check_clients.sh, or with
#    ctest --test-dir build/release -L clients
#  - emulated: tests of every policy on the emulated CUDA device, which take minutes. Run them with
#    ctest --test-dir build/release -L emulated
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

[ $# -gt 0 ] || set -- release
install_packages
for preset in "$@"; do
  targets=() only=()
  case $preset in
  release | asan | cuda)
    find_torch
    fetch_model
    ;;
  tsan)  # without LibTorch, which is not instrumented; single-threaded suites and SmolLM2 would take most of an hour
    targets=(kernels_test cache_test engine_test server_test)
    only=(--tests-regex '^(kernels|cache|engine|server)\.' --exclude-regex '\.(Parity|RealModel[A-Za-z]*)$')
    ;;
  *) fail "unknown preset '$preset': expected release, asan, tsan or cuda" ;;
  esac
  build "$preset" "${targets[@]}"
  step "Testing build/$preset"
  ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" --label-exclude '^(clients|emulated)$' "${only[@]}"
done
