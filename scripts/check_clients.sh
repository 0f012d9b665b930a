#!/usr/bin/env bash
# Runs unmodified third-party clients against the server: openai, anthropic, pydantic-ai, instructor, langchain-openai,
# litellm, lm-eval, guidellm, openai-agents, langgraph, aider, and schemathesis, which tests what /openapi.json promises.
#   scripts/check_clients.sh [--smartkv PROGRAM] [NAME...]    all, or only these: openai responses anthropic anthropic_thinking
#                                                             pydantic_ai instructor langchain litellm openai_agents langgraph
#                                                             aider lm_eval guidellm schemathesis
# aider needs a model that can program: a file $CODER_MODEL, without which it is skipped.
# Each client is installed into an environment of its own. A client that cannot be installed is skipped with a message.
# With --smartkv nothing is built or fetched. Exit code: 1 if a client failed, 77 if all were skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

declare -A packages=([openai]="openai==3.54.0" [anthropic]="anthropic==2.14.0" [anthropic_thinking]="anthropic==2.14.0" [responses]="openai==3.54.0" [pydantic_ai]="pydantic-ai-slim[openai]==2.68.0"
                     [instructor]="instructor==1.17.0" [langchain]="langchain-openai==1.7.3" [litellm]="litellm[mcp]==1.106.2"
                     [openai_agents]="openai-agents==0.24.0" [aider]="aider-chat==0.86.2"
                     [langgraph]="langgraph==1.2.24 langchain-openai==1.7.3"
                     [lm_eval]="lm-eval[api]==0.4.13" [guidellm]="guidellm==0.8.1 torch==$TORCH_VERSION"
                     [schemathesis]="schemathesis==4.32.5")
take_server "$@"
set -- "${REST[@]}"
[ $# -gt 0 ] || set -- openai responses anthropic anthropic_thinking pydantic_ai instructor langchain litellm openai_agents langgraph aider lm_eval guidellm schemathesis
status=$SKIPPED
for name in "$@"; do
  [ -n "${packages[$name]:-}" ] || fail "client '$name': expected one of ${!packages[*]}"
  model=$MODEL
  if [ "$name" = aider ]; then
    model=${CODER_MODEL:-}
    [ -e "$model" ] || { step "skipped: aider: \$CODER_MODEL names no model"; continue; }
  fi
  env=${name/responses/openai}
  client_env "${env%_thinking}" ${packages[$name]} || continue
  [ $status -eq 1 ] || status=0
  "$CLIENT_PYTHON" scripts/check_clients.py --smartkv "$SMARTKV" --model "$model" "$name" || status=1
done
exit $status
