"""Starts servers for the other scripts, and reads streams. Standard library only."""
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys

DEFAULT_MODEL = "SmolLM2-135M-Instruct"  # the server's name for it


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class StreamError(ConnectionError):
    """An incomplete stream: an error ended it, or it was cut."""


def events(response):
    """Yields the chunks of a streamed completion, read from `response` line by line. Raises StreamError if the stream
    contains an error, or ends without a finish_reason and [DONE]."""
    finished = False
    try:
        for line in response:
            if line.strip() == b"data: [DONE]":
                if not finished:
                    raise StreamError("the stream holds no finish_reason")
                return
            if not line.startswith(b"data:"):
                continue  # skips comments, which keep a silent stream alive
            event = json.loads(line[5:])
            if "error" in event:
                raise StreamError(event["error"]["message"])
            finished = finished or any(choice.get("finish_reason") for choice in event.get("choices", []))
            yield event
    except http.client.IncompleteRead as error:
        raise StreamError("the stream was cut") from error
    raise StreamError("the stream ended without [DONE]")


@contextlib.contextmanager
def smartkv_server(smartkv, model, *options):
    """Runs `smartkv serve` and yields its URL without a path, once it listens. The server is stopped with the block."""
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
