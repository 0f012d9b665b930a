"""Runs smartkv bench --serving case by case with llama-server as a peer. See bench_serving.sh."""
import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from servers import free_port

parser = argparse.ArgumentParser()
parser.add_argument("--llama-server")
parser.add_argument("--smartkv", required=True)
parser.add_argument("--bf16", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--cases", default="a,b,c,d,e,f,g")
parser.add_argument("--kv-cache-bytes", help="cache memory instead of the cases' own, in bytes or as 96MB")
parser.add_argument("--requests")
parser.add_argument("--plot")
parser.add_argument("--json")
parser.add_argument("--no-peers", action="store_true")
args, rest = parser.parse_known_args()
if not args.no_peers and args.llama_server is None:
    parser.error("--llama-server: expected a path, or --no-peers")
rest = [option for option in rest if option != "--"]

threads = len(os.sched_getaffinity(0))
# Bytes of a block of 32 values in llama.cpp's KV cache formats: q8_0 has 32 8-bit integers and a 16-bit scale.
BLOCK_BYTES = {"f16": 64, "q8_0": 34}
SLOT_GRANULE = 256  # llama.cpp rounds a slot's context up to a multiple of it


def case_options():
    given = {"--requests": args.requests, "--kv-cache-bytes": args.kv_cache_bytes}
    return [text for name, value in given.items() if value for text in (name, value)]


def smartkv(*options):
    command = [args.smartkv, "bench", "--serving", *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def kv_values_per_token():
    """Returns the number of key and value elements of all layers, as smartkv inspect reports the model."""
    model = json.loads(subprocess.run([args.smartkv, "inspect", args.model, "--json"], check=True, stdout=subprocess.PIPE,
                                      text=True).stdout)
    return model["kv_bytes_per_token_bf16"] // 2


def slots(case, kind):
    """Returns how many requests fit side by side in the bytes of the case, and the tokens of each slot."""
    each = -(-case["longest_request"] // SLOT_GRANULE) * SLOT_GRANULE
    if case["fairness"]:
        return 2, each
    budget = case["kv_cache_bytes"] * 32 // (BLOCK_BYTES[kind] * kv_values_per_token())
    fit = budget // each
    if fit == 0:
        sys.exit(f"case {case['name']}: a slot of {each} tokens needs more than {case['kv_cache_bytes']} bytes of {kind}")
    return min(fit, case["requests"]), each


def wait_until_ready(process, port):
    for _ in range(6000):
        if process.poll() is not None:
            sys.exit(f"llama-server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.01)
    sys.exit("llama-server was not ready after a minute")


@contextlib.contextmanager
def llama_server(case, kind):
    """Runs a llama-server with as many slots as fit the bytes of the case, each long enough for a request."""
    n, each = slots(case, kind)
    port = free_port()
    command = [args.llama_server, "-m", args.bf16, "--host", "127.0.0.1", "--port", str(port), "-t", str(threads),
               "-c", str(n * each), "--parallel", str(n), "--no-kv-unified", "-fa", "on", "--cache-type-k", kind,
               "--cache-type-v", kind, "--threads-http", str(case["requests"] + 8)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(process, port)
        yield ["--peer", f"http://127.0.0.1:{port}", "--peer-name", f"llama-server {kind}, {n} slots"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def measure(case):
    with contextlib.ExitStack() as stack:
        peers = []
        for kind in BLOCK_BYTES if not args.no_peers else ():
            peers += stack.enter_context(llama_server(case, kind))
        print(f"case {case['name']}: {case['requests']} of {case['what']}", file=sys.stderr, flush=True)
        return smartkv("--model", args.model, "--weights", "bf16", "--cases", case["name"], "--json", *case_options(), *peers, *rest)


with tempfile.TemporaryDirectory() as folder:
    saved = []
    for case in json.loads(smartkv("--print-cases", "--model", args.model, "--cases", args.cases, *case_options(), *rest)):
        saved.append(os.path.join(folder, case["name"] + ".json"))
        with open(saved[-1], "w") as file:
            file.write(measure(case))
    plot = ["--plot", args.plot] if args.plot else []
    if args.json:
        with open(args.json, "w") as file:
            file.write(smartkv("--json", "--saved", *saved))
    print(smartkv(*plot, "--saved", *saved), end="")
