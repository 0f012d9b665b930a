"""Checks a server that has nearly used up its address space. See scripts/check_memory.sh."""
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

program, model, headroom = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
arguments = [program, "serve", "--model", model, "--port", "0", "--kv-cache-bytes", "64MiB", "--threads", "2"]
log = tempfile.TemporaryFile("w+")


def fail(message):
    log.seek(0)
    sys.exit("".join(log.readlines()[-10:]) + "check_memory: " + message)


class Server:
    """A server on a free port. `limit` is its address space in bytes, or None."""

    def __init__(self, limit):
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True,
                                        preexec_fn=lambda: limit and resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        if not found:
            fail(f"the server did not start: {line!r}")
        self.url = found.group()

    def post(self, path, body):
        """Returns the status, or 0 if the connection was closed without an answer."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                response.read()
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except (urllib.error.URLError, OSError):
            return 0

    def address_space(self):
        status = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(r"VmPeak:\s+(\d+) kB", status).group(1)) << 10


def chat(text, **more):
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}).encode()


hostile = {
    "many values": b'{"messages": [' + b"[]," * 900_000 + b"[]]}",
    "many messages": json.dumps({"messages": [{"role": "user", "content": "x"}] * 200_000}).encode(),
    "deep values": b'{"messages": ' + b'[[{"a":' * 15 + b"1" + b"}]]" * 15 + b"}",
    "a long text": chat("word " * 3_000_000),
    "many tokens": json.dumps({"prompt": [1] * 900_000}).encode(),
    "large schema": chat("x", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 100} for i in range(200)}}}}),
}

free = Server(None)
assert free.post("/v1/chat/completions", chat("Hello")) == 200
limit = free.address_space() + headroom
free.process.send_signal(signal.SIGTERM)
free.process.wait(60)

server = Server(limit)
seen = {}
for name, body in hostile.items():
    path = "/v1/completions" if name == "many tokens" else "/v1/chat/completions"
    threads = [threading.Thread(target=lambda: seen.setdefault(name, []).append(server.post(path, body))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.process.send_signal(signal.SIGHUP)  # nothing to reload
    if server.process.poll() is not None:
        fail(f"{name}: the server ended with status {server.process.returncode}")
    print(f"{name}: {dict((status, seen[name].count(status)) for status in sorted(set(seen[name])))}", flush=True)
    for _ in range(50):  # it must accept requests again once memory is free
        after = server.post("/v1/chat/completions", chat("Hello"))
        if after == 200:
            break
        time.sleep(0.2)
    if after != 200:
        fail(f"{name}: afterwards a small request is answered with {after}")
statuses = {status for found in seen.values() for status in found}
if not statuses <= {0, 200, 400, 413, 429, 500, 503}:
    fail(f"unexpected statuses {statuses}")
server.process.send_signal(signal.SIGTERM)
if server.process.wait(60) != 0:
    fail(f"the server ended with status {server.process.returncode}")
print("the server kept answering")
