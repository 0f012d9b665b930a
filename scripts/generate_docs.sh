#!/usr/bin/env bash
# Rewrites the generated parts of docs/reference from the tables of the code. REQUIRES: build/release is configured.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build build/release --target server_test
# A page that was out of date fails its test in the first run, which rewrites it, and passes the second.
SMARTKV_GENERATE_DOCS=1 build/release/tests/server_test --gtest_filter='Pages/ReferenceDocs.*' >/dev/null || true
build/release/tests/server_test --gtest_filter='Pages/ReferenceDocs.*'
git --no-pager diff --stat -- docs/reference
