#!/usr/bin/env bash
# From a fresh Debian 12 machine to passed tests: scripts/test.sh [preset...]
# Presets: release (the default), asan (every test), tsan (engine and server tests).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

[ $# -gt 0 ] || set -- release
install_packages
find_torch
fetch_model
for preset in "$@"; do
  only=()
  case $preset in
  release | cuda) build "$preset" ;;
  asan) build asan ;;
  tsan)
    build tsan smartkv kernels_test cache_test engine_test server_test
    only=(--tests-regex '^(kernels|cache|engine|server)\.' --exclude-regex Parity)  # Parity is one thread's arithmetic, minutes long here
    ;;
  *) fail "unknown preset '$preset': expected release, asan, tsan or cuda" ;;
  esac
  step "Testing build/$preset"
  ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" "${only[@]}"
done
