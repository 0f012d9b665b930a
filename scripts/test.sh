#!/usr/bin/env bash
# From a bare Debian 12 to passed tests.
#   scripts/test.sh [PRESET...]   builds and tests presets: release (the default), asan, tsan or cuda
#   scripts/test.sh PROGRAM...    builds and runs test programs of build/release, such as cache, engine or server
#   scripts/test.sh quick         runs the fast suites of build/release, which must be built
# release, asan and cuda run every test. tsan runs the tests in which threads meet. The tests with the label `clients`
# install other people's clients and run by scripts/check_clients.sh, or by ctest --test-dir build/release -L clients.
# The tests with the label `emulated`, every policy on the emulated CUDA device, take minutes:
# ctest --test-dir build/release -L emulated
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

PRESETS='^(release|asan|tsan|cuda)$'
PROGRAMS='^(kernels|cache|weights|text|hub|engine|server|lab|torch)$'
SLOW_LABELS='^(clients|emulated)$'
# Suites of more than five seconds, and those that start servers or train.
SLOW_SUITES='^(torch\.|cuda\.|server\.|lab\.|kernels\.Levels/|cache\.(Policies|Bits)/|weights\.Fuzz|engine\.(Parity|RealModel|All/|LlamaSpeculation|JsonSchema|Parameters/)|text\.Tokenizer)'

run_tests() {  # PRESET [ARGUMENT of ctest...]
  step "Testing build/$1"
  ctest --test-dir "build/$1" --output-on-failure --parallel "$(nproc)" --label-exclude "$SLOW_LABELS" "${@:2}"
}

[ $# -gt 0 ] || set -- release
if [ "$1" = quick ]; then
  [ $# -eq 1 ] || fail "expected nothing after 'quick', found '$2'"
  [ -x build/release/tests/cache_test ] || fail "build/release is not built: run 'scripts/test.sh' once"
  run_tests release --exclude-regex "$SLOW_SUITES"
  exit
fi

for name in "$@"; do
  [[ $name =~ $PRESETS || $name =~ $PROGRAMS ]] ||
    fail "unknown name '$name': expected quick, a preset (release, asan, tsan, cuda) or a program (kernels, cache, weights, text, hub, engine, server, lab, torch)"
done

install_packages
for name in "$@"; do
  preset=$name targets=() only=()
  case $name in
  tsan)  # without LibTorch, which is not instrumented, and without the single-threaded suites that would take an hour
    targets=(kernels_test cache_test engine_test server_test lab_test)
    only=(--tests-regex '^((kernels|cache|engine|server)\.|lab\.(LoadClient|RunServingCase|ServerProcess))' --exclude-regex '\.(Parity|RealModel[A-Za-z]*)$')
    ;;
  *)
    find_torch
    fetch_model
    if [[ $name =~ $PROGRAMS ]]; then
      preset=release targets=("${name}_test") only=(--tests-regex "^$name\\.")
    fi
    ;;
  esac
  build "$preset" "${targets[@]}"
  run_tests "$preset" "${only[@]}"
done
