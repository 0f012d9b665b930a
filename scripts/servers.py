"""Servers that the scripts beside this start for themselves. Standard library only."""
import contextlib
import re
import signal
import socket
import subprocess
import sys

DEFAULT_MODEL = "SmolLM2-135M-Instruct"  # as the server names it


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def smartkv_server(smartkv, model, *options):
    """The URL, without a path, of a `smartkv serve` that is up; it ends with the block, in good order."""
    server = subprocess.Popen([smartkv, "serve", "--model", model, "--port", "0", "--log-level", "warning", *options],
                              stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"(http://\S+)/v1", server.stdout.readline())
        if found is None:
            sys.exit(f"smartkv serve ended with exit code {server.wait()}")
        yield found.group(1)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
