#!/usr/bin/env bash
# Runs a server with a limit of its address space and sends it requests that need more memory than it has. The server
# must keep answering, and end when it is told to.
#   scripts/check_memory.sh [--smartkv PROGRAM] [--model MODEL] [--headroom MIB]
# --headroom: address space beyond that of the idle server, in MiB; default 256.
set -euo pipefail
cd "$(dirname "$0")/.."
smartkv=build/release/smartkv
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
headroom=256
while [ $# -gt 0 ]; do
  case $1 in
    --smartkv) smartkv=$2 ;;
    --model) model=$2 ;;
    --headroom) headroom=$2 ;;
    *) echo "check_memory: unknown option $1" >&2; exit 1 ;;
  esac
  shift 2
done
exec python3 scripts/check_memory.py "$smartkv" "$model" "$headroom"
