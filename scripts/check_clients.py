"""Runs third-party clients against the server. scripts/check_clients.sh runs this with the Python of the client's
environment.

The checks of libraries are in client_libraries.py, those of programs in client_programs.py.
"""

import argparse
import importlib
import sys
import traceback

import client_programs
from servers import smartkv_server

# Options of the server for a check. A short context makes requests without a limit end soon.
STORING = ("--stored-responses-bytes", "1MiB")
THINKING = ("--chat-template", "tests/fixtures/chat_templates/published/qwq.jinja")
SERVER_OPTIONS = {"anthropic_thinking": THINKING, "responses": STORING, "openai_agents": STORING,
                  "schemathesis": (*STORING, "--context-length", "64", "--max-sequences", "4")}


def find_check(name):
    """Returns the function that checks a client, or None. Libraries are imported only if the client is one."""
    in_programs = getattr(client_programs, "check_" + name, None)
    return in_programs or getattr(importlib.import_module("client_libraries"), "check_" + name, None)


def check(name, url):
    """Runs a check and returns whether it passed."""
    try:
        function = find_check(name)
        if function is None:
            raise LookupError(f"no module has a function check_{name}")
        function(url)
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
    parser.add_argument("name", help="a client that scripts/check_clients.sh lists")
    options = parser.parse_args()
    if options.url is not None:
        passed = check(options.name, options.url)
    else:
        server_options = ("--weights", "bf16", *SERVER_OPTIONS.get(options.name, ()))
        with smartkv_server(options.smartkv, options.model, *server_options) as url:
            passed = check(options.name, url + "/v1")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
