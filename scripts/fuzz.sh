#!/usr/bin/env bash
# Builds the fuzz targets (tests/fuzz) with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each for a time.
#   scripts/fuzz.sh [SECONDS [TARGET...]]      default: 60 seconds, all targets
# Fuzzing starts from tests/fuzz/corpus/TARGET and the fixtures. New inputs are kept in build/fuzz/corpus/TARGET. If
# there are findings, they are in build/fuzz/findings/TARGET-*, and the exit code is 1. To reproduce one, run
# build/fuzz/tests/fuzz/fuzz_TARGET FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

SECONDS_EACH=${1:-60}
shift || true
TARGETS=("$@")
[ ${#TARGETS[@]} -gt 0 ] || TARGETS=(agent_traces answers config chat_template gguf json_requests prefix_files requests safetensors tokenizer_json)

install_packages clang-16 libclang-rt-16-dev  # clang 14 cannot capture structured bindings in lambdas
# These are built with g++ and not instrumented, because clang 16 cannot compile them (SMARTKV_GCC_LIBRARIES).
build release xgrammar smartkv_kernels
build fuzz "${TARGETS[@]/#/fuzz_}"

# seeds_of TARGET: prints the fixtures that the target starts from, besides its corpus.
seeds_of() {
  case $1 in
    gguf) find tests/fixtures/weights tests/fixtures/architectures -name '*.gguf' ;;
    safetensors) find tests/fixtures/weights tests/fixtures/architectures -name '*.safetensors' ;;
    tokenizer_json) find tests/fixtures/tokenizers -name '*.json' ;;
    chat_template) find tests/fixtures/chat_templates -name '*.jinja' ;;
  esac
}

# Targets write their files here: in memory, if there is /dev/shm.
TMPDIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

export ASAN_OPTIONS=allocator_may_return_null=1
found=0
mkdir -p build/fuzz/findings
for target in "${TARGETS[@]}"; do
  step "$target, $SECONDS_EACH s"
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  seeds_of "$target" | while read -r file; do
    [ "$(stat -c %s "$file")" -gt 65536 ] || cp -n "$file" "$corpus/$(md5sum <"$file" | cut -c1-32)"
  done
  build/fuzz/tests/fuzz/fuzz_"$target" -max_total_time="$SECONDS_EACH" -max_len=65536 -timeout=20 -rss_limit_mb=3072 \
    -print_final_stats=1 -verbosity=1 -artifact_prefix=build/fuzz/findings/"$target"- "$corpus" tests/fuzz/corpus/"$target" \
    >build/fuzz/"$target".log 2>&1 || { found=1; echo "$target: there is a finding, see build/fuzz/$target.log" >&2; }
  grep -E 'stat::number_of_executed_units|cov: ' build/fuzz/"$target".log | tail -n 2 || true
done
exit $found
