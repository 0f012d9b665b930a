#!/usr/bin/env bash
# Compares greedy answers to a GGUF file with those of transformers on the same file, dequantized (scripts/check_answers.py).
#   scripts/check_answers.sh MODEL.gguf [PROGRAM]    PROGRAM: build/release/smartkv unless given
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh
[ $# -ge 1 ] || fail "expected a GGUF file: scripts/check_answers.sh MODEL.gguf"
program=${2:-build/release/smartkv}
[ -x "$program" ] || fail "$program is not built: run 'scripts/test.sh' once"
client_env answers torch==2.13.0 transformers==5.24.0 gguf==0.19.0 sentencepiece==0.2.3 accelerate || exit $SKIPPED
exec "$CLIENT_PYTHON" scripts/check_answers.py "$1" "$program"
