#!/usr/bin/env bash
# Checks the format of the C++ and CUDA sources (.clang-format), the Python scripts (ruff.toml) and the list of
# dependencies (THIRD_PARTY.md). CI runs it.
#   scripts/check_style.sh          names the files at fault
#   scripts/check_style.sh --fix    formats them
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

CLANG_FORMAT=16.0.6  # other versions format some lines differently
RUFF=0.14.6

case ${1:-} in
'') clang_format=(--dry-run --Werror) ruff=() ;;
--fix) clang_format=(-i) ruff=(--fix) ;;
*) fail "expected nothing or --fix, found '$1'" ;;
esac
make_venv
.venv/bin/python -m pip install -q --disable-pip-version-check "clang-format==$CLANG_FORMAT" "ruff==$RUFF" >&2 ||
  fail "'pip install clang-format==$CLANG_FORMAT ruff==$RUFF' failed: check the network"
step "Checking the format of the sources"
git ls-files '*.h' '*.hpp' '*.cpp' '*.cu' | grep -v '^third_party/\|/fixtures/' |
  xargs -P "$(nproc)" -n 32 .venv/bin/clang-format "${clang_format[@]}" ||
  fail "the files above are not formatted: run scripts/check_style.sh --fix"
.venv/bin/ruff check --quiet "${ruff[@]}" . || fail "ruff found the faults above"
python3 scripts/check_third_party.py
