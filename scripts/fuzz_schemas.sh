#!/usr/bin/env bash
# Generates JSON schemas, lets the default model answer under each, and checks every answer with the jsonschema package.
#   scripts/fuzz_schemas.sh [--smartkv PROGRAM] [--schemas 500] [--seed 1] [--temperature 1.2] [--speculative METHOD]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

take_server "$@"
client_env jsonschema jsonschema==4.25.1 || exit $SKIPPED
exec "$CLIENT_PYTHON" scripts/fuzz_schemas.py --smartkv "$SMARTKV" --model "$MODEL" "${REST[@]}"
