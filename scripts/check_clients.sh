#!/usr/bin/env bash
# Runs other people's clients against the server as they are: openai, pydantic-ai, instructor, langchain-openai, litellm;
# schemathesis, which tries what /openapi.json says.
#   scripts/check_clients.sh [NAME...]    all, or only these: openai responses pydantic_ai instructor langchain litellm schemathesis
# Each is installed into a private environment; one that cannot be had is skipped with a message.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

install_packages
build release smartkv
fetch_model
declare -A packages=([openai]="openai==1.109.1" [responses]="openai==1.109.1" [pydantic_ai]="pydantic-ai-slim[openai]" [instructor]="instructor"
                     [langchain]="langchain-openai" [litellm]="litellm"
                     [schemathesis]="schemathesis==4.32.5")
[ $# -gt 0 ] || set -- openai responses pydantic_ai instructor langchain litellm schemathesis
present=()
for name in "$@"; do
  client_env ${packages[$name]} && present+=("$name")
done
[ ${#present[@]} -gt 0 ] || exit 0
exec "$CLIENT_PYTHON" scripts/check_clients.py --smartkv build/release/smartkv --model "$MODEL" "${present[@]}"
