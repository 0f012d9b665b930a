#!/usr/bin/env python3
"""Measures over HTTP how long a pass takes while many requests wait.

    scripts/bench_queue.py --smartkv build/release/smartkv --model MODEL [--waiting 30,3000,10000] [--seconds 4]

Memory holds only a few sequences, so admission considers the queue in every pass. Prints a table of waiting requests,
running sequences, and milliseconds per pass. Standard library only.
"""
import argparse
import http.client
import json
import random
import sys
import time

from servers import smartkv_server


def metric(address, name):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(f"smartkv:{name}{{"):
            return float(line.split()[-1])
    sys.exit(f"/metrics: expected smartkv:{name}, found none")


def measure(address, waiting, seconds):
    draw = random.Random(waiting)
    prompts = [[draw.randrange(100, 10000) for _ in range(10)] for _ in range(waiting)]
    body = {"prompt": prompts, "max_tokens": 900, "ignore_eos": True, "temperature": 0}
    client = http.client.HTTPConnection(address, timeout=600)
    client.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    while metric(address, "num_requests_waiting") < 0.8 * waiting:
        time.sleep(0.05)
    time.sleep(1)
    passes, start = metric(address, "steps_total"), time.perf_counter()
    time.sleep(seconds)
    passes, seconds = metric(address, "steps_total") - passes, time.perf_counter() - start
    found = metric(address, "num_requests_waiting"), metric(address, "num_requests_running"), 1000 * seconds / max(1, passes)
    client.close()  # cancels the waiting requests
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--waiting", default="30,3000,10000")
    parser.add_argument("--seconds", type=float, default=4)
    arguments = parser.parse_args()
    print("| waiting | running | ms per pass |\n|---|---|---|")
    for waiting in map(int, arguments.waiting.split(",")):
        options = ["--kv-cache-bytes", "24MiB", "--max-queue", str(2 * waiting)]
        with smartkv_server(arguments.smartkv, arguments.model, *options) as url:
            found = measure(url.removeprefix("http://"), waiting, arguments.seconds)
            print("| {:.0f} | {:.0f} | {:.1f} |".format(*found), flush=True)


if __name__ == "__main__":
    main()
