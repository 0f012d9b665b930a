#!/usr/bin/env bash
# Measures turns of agents at fixed cache memory, beside llama-server with about twice as much: smartkv bench agents.
#   scripts/bench_agents.sh MODEL.gguf [options of smartkv bench agents]
# Prints the table in Markdown. Writes build/agents.json and build/agents.svg, unless --json and --plot say otherwise.
# llama.cpp is found or built as in compare_llama_cpp.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/llama_cpp.sh

[ $# -gt 0 ] || fail "expected the path of a GGUF file"
GGUF=$1
shift
install_packages
build release smartkv
find_llama_cpp
PATHS=()
[[ " $* " == *" --json "* ]] || PATHS+=(--json build/agents.json)
[[ " $* " == *" --plot "* ]] || PATHS+=(--plot build/agents.svg)
exec build/release/smartkv bench agents --model "$GGUF" --llama-server "$LLAMA/bin/llama-server" --markdown \
  "${PATHS[@]}" "$@"
