#!/usr/bin/env bash
# Runs unmodified third-party clients against the server.
#   scripts/check_clients.sh [--smartkv PROGRAM] [NAME...]    all, or only these
#   scripts/check_clients.sh --list                           prints their names
# aider needs a model that can program: a file $CODER_MODEL, without which it is skipped.
# Each client is installed into an environment of its own. A client that cannot be installed is skipped with a message.
# With --smartkv nothing is built or fetched. Exit code: 1 if a client failed, 77 if all were skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

# The clients: a name, and the packages of its environment. Clients whose first package is the same share one.
CLIENTS=("openai openai==3.54.0"
         "responses openai==3.54.0"
         "anthropic anthropic==2.14.0"
         "anthropic_thinking anthropic==2.14.0"
         "pydantic_ai pydantic-ai-slim[openai]==2.68.0"
         "instructor instructor==1.17.0"
         "langchain langchain-openai==1.7.3"
         "litellm litellm[mcp]==1.106.2"
         "openai_agents openai-agents==0.24.0"
         "langgraph langgraph==1.2.24 langchain-openai==1.7.3"
         "aider aider-chat==0.86.2"
         "lm_eval lm-eval[api]==0.4.13"
         "guidellm guidellm==0.8.1 torch==$TORCH_VERSION"
         "schemathesis schemathesis==4.32.5")
NAMES=("${CLIENTS[@]%% *}")
if [ "${1:-}" = --list ]; then
  printf '%s\n' "${NAMES[@]}"
  exit
fi
take_server "$@"
set -- "${REST[@]}"
[ $# -gt 0 ] || set -- "${NAMES[@]}"
status=$SKIPPED
for name in "$@"; do
  packages=
  for client in "${CLIENTS[@]}"; do
    [ "${client%% *}" != "$name" ] || packages=${client#* }
  done
  [ -n "$packages" ] || fail "client '$name': expected one of ${NAMES[*]}"
  model=$MODEL
  if [ "$name" = aider ]; then
    model=${CODER_MODEL:-}
    [ -e "$model" ] || { step "skipped: aider: \$CODER_MODEL names no model"; continue; }
  fi
  client_env "${packages%%[[=]*}" $packages || continue
  [ $status -eq 1 ] || status=0
  "$CLIENT_PYTHON" scripts/check_clients.py --smartkv "$SMARTKV" --model "$model" "$name" || status=1
done
exit $status
