#!/usr/bin/env bash
# Compares tokenizers with the Hugging Face tokenizers library on strings that are not in the tests' fixtures.
#   scripts/check_tokenizers.sh [SEED [COUNT [CHARACTER_MAP]]]
# CHARACTER_MAP is the name of one of SentencePiece's own maps.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh
client_env tokenizers tokenizers==0.23.3 sentencepiece==0.2.3 || exit $SKIPPED
install_packages
build release text_test
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
step "Generating random strings"
"$CLIENT_PYTHON" tests/fixtures/tokenizers/make_families.py --folder "$folder" --seed "${1:-$RANDOM}" --count "${2:-10000}" \
  ${3:+--character-map "$3"} >&2
SMARTKV_TOKENIZER_FAMILIES=$folder build/release/tests/text_test --gtest_filter='TokenizerFamilies.*'
