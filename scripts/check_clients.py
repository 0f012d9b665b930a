"""Runs third-party clients against the server. scripts/check_clients.sh runs this with the Python of the client's
environment.

The checks of libraries are in client_libraries.py, those of programs in client_programs.py.
"""

import argparse
import importlib
import sys
import traceback

from servers import smartkv_server

MODULES = {"openai": "client_libraries", "responses": "client_libraries", "anthropic": "client_libraries",
           "anthropic_thinking": "client_libraries",
           "pydantic_ai": "client_libraries",
           "instructor": "client_libraries", "langchain": "client_libraries", "litellm": "client_libraries",
           "openai_agents": "client_libraries", "langgraph": "client_libraries", "aider": "client_programs",
           "lm_eval": "client_programs", "guidellm": "client_programs", "schemathesis": "client_programs"}
# Options of the server for a check. A short context makes requests without a limit end soon.
STORING = ("--stored-responses-bytes", "1MiB")
THINKING = ("--chat-template", "tests/fixtures/chat_templates/published/qwq.jinja")
SERVER_OPTIONS = {"anthropic_thinking": THINKING, "responses": STORING, "openai_agents": STORING, "schemathesis": (*STORING, "--context-length", "64", "--max-sequences", "4")}


def check(name, url):
    """Runs a check and returns whether it passed."""
    try:
        getattr(importlib.import_module(MODULES[name]), "check_" + name)(url)
        print(f"{name}: passed", flush=True)
        return True
    except Exception:
        traceback.print_exc()
        print(f"{name}: FAILED", flush=True)
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", help="the program")
    parser.add_argument("--model")
    parser.add_argument("--url", help="URL of a running server, ending in /v1")
    parser.add_argument("name", choices=MODULES)
    options = parser.parse_args()
    if options.url is not None:
        passed = check(options.name, options.url)
    else:
        with smartkv_server(options.smartkv, options.model, "--weights", "bf16", *SERVER_OPTIONS.get(options.name, ())) as url:
            passed = check(options.name, url + "/v1")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
