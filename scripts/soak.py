#!/usr/bin/env python3
"""Puts a server under load for a long time with many kinds of requests at once, and checks every answer.

    scripts/soak.py --smartkv build/release/smartkv --model MODEL [--minutes 30] [--clients 64] [--kills 1] [--report docs/operate/soak.md]

First each request of a fixed set is answered alone, which gives its reference answer. The set has prompts that share
beginnings, several cache policies, requests with and without speculation, greedy and sampled. Then --clients clients
send these requests, with and without streaming, disconnect in the middle of streams, and send garbage. The server has
so little memory that it preempts sequences. In the first third of the time it is killed (SIGKILL) --kills times, and
restarted with the same prefix_cache_dir. The report says of each promise whether it held. The exit code is 1 if one did not:

  - Every complete answer equals its reference answer. No answer is a 5xx. Only a kill cuts connections.
  - Memory is flat: the RSS in the last thirtieth of the time is within 5 % of the RSS after a third (in 30 minutes: the
    last minute, and minute 10).
  - /health always answers within 100 ms. A separate process asks ten times a second, each time on a new connection.
  - Everything occurred: prefix hits, drafts, preemptions, disconnects, garbage.
  - SIGTERM ends the server in good order.

Standard library only.
"""
import argparse
import collections
import http.client
import json
import multiprocessing
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from servers import DEFAULT_MODEL, events, free_port

POLICIES = ["full", "balanced", "k4v4", {"policy": "streaming", "tokens": 256}]
METHODS = ["off", {"method": "ngram", "adaptive": False}]
TEXT = "assets/evaluation/prose.txt"
PROMPTS = 4
SHARED, OWN = 1500, 300  # characters at the beginning that all prompts share, and characters of one prompt only
MAX_TOKENS = 24
HEALTH_LIMIT_MS = 100
RSS_LIMIT = 0.05
GARBAGE = [
    b"\x00\xff\x16\x03\x01 not a request\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"prompt\"",
    b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
]


def requests():
    text = open(TEXT, encoding="utf-8").read()
    result = []
    for i in range(PROMPTS):
        own = text[SHARED + i * OWN:SHARED + (i + 1) * OWN]
        for policy in POLICIES:
            for method in METHODS:
                sampling = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.8, "seed": i}
                result.append({"prompt": text[:SHARED] + own, "max_tokens": MAX_TOKENS, "kv_cache": policy,
                               "speculative": method, **sampling})
    return result


class Server:
    """`smartkv serve` on one port, which may be killed and restarted."""

    def __init__(self, arguments, folder):
        self.port = free_port()
        self.command = [arguments.smartkv, "serve", "--model", arguments.model, "--weights", arguments.weights, "--port", str(self.port), "--log-level", "error",
                        "--kv-cache-bytes", arguments.kv_cache_bytes, "--max-sequences", "16", "--max-queue", "256",
                        "--prefix-cache-dir", folder]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        if "Serving" not in self.process.stdout.readline():
            sys.exit(f"smartkv serve ended with exit code {self.process.wait()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def rss(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()


class Soak:
    """State that the clients share: counts, and whether the end of a connection was intended."""

    def __init__(self, server, references):
        self.server, self.references = server, references
        self.counts = collections.Counter()
        self.faults = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.kills = 0            # number of kills of the server, including one that is about to happen
        self.up = threading.Event()
        self.up.set()

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def fault(self, what):
        with self.lock:
            self.counts["faults"] += 1
            if len(self.faults) < 20:
                self.faults.append(what)

    def post(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def check(self, index, text, usage):
        self.count("answers")
        self.count("hits", usage["prompt_tokens_details"]["cached_tokens"] > 0)
        self.count("drafted", usage.get("speculative", {}).get("drafted", 0))
        if text != self.references[index][1]:
            self.fault(f"request {index}: {text!r} instead of {self.references[index][1]!r}")

    def refused(self, response):
        body = response.read()
        self.count(f"status {response.status}")
        if response.status not in (429, 503):
            self.fault(f"{response.status}: {body[:200]!r}")
        elif response.status == 503 and b"overloaded" not in body:
            self.fault(f"503: {body[:200]!r}")
        time.sleep(min(5, float(response.headers.get("Retry-After", 1))))

    def whole(self, index):
        connection, response = self.post(self.references[index][0])
        if response.status != 200:
            return self.refused(response)
        answer = json.loads(response.read())
        self.check(index, answer["choices"][0]["text"], answer["usage"])

    def stream(self, index, leave_after=None):
        body = {**self.references[index][0], "stream": True, "stream_options": {"include_usage": True}}
        connection, response = self.post(body)
        if response.status != 200:
            return self.refused(response)
        text, usage, n_events = "", None, 0
        for event in events(response):
            n_events += 1
            if event["choices"]:
                text += event["choices"][0]["text"]
            usage = event.get("usage") or usage
            if leave_after is not None and n_events >= leave_after:
                connection.sock.close()
                self.count("disconnects")
                return None
        return self.check(index, text, usage)

    def garbage(self, rng):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as connection:
            connection.sendall(rng.choice(GARBAGE))
            if rng.random() < 0.5:
                connection.settimeout(1)
                try:
                    connection.recv(4096)
                except TimeoutError:
                    pass  # the server waits for the rest of an unfinished request
        self.count("garbage")

    def client(self, seed):
        rng = random.Random(seed)
        while not self.stopping.is_set():
            self.up.wait()
            kills = self.kills
            index, kind = rng.randrange(len(self.references)), rng.random()
            try:
                if kind < 0.45:
                    self.whole(index)
                elif kind < 0.8:
                    self.stream(index)
                elif kind < 0.93:
                    self.stream(index, leave_after=rng.randrange(1, 8))
                else:
                    self.garbage(rng)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if kind >= 0.93:
                    self.count("garbage")
                elif kills == self.kills:
                    self.fault(f"request {index}: {error!r}")
                else:
                    self.count("cut by a kill")


def probe_health(port, up, stopping, results):
    """Measures the milliseconds of each answer while the server is up. None stands for no answer."""
    os.nice(-5 if os.geteuid() == 0 else 0)  # keeps this process's own waiting for a core out of the measurement
    times = []
    while not stopping.is_set():
        time.sleep(0.1)
        if not up.is_set():
            continue
        begin = time.perf_counter()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answered = connection.recv(4096).startswith(b"HTTP/1.1 200")
        except OSError:
            answered = False
        if up.is_set():  # otherwise the server was killed meanwhile
            times.append(1000 * (time.perf_counter() - begin) if answered else None)
    results.put(times)


def metric(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def load(soak, server, seconds, arguments, restarted):
    """Runs the clients. Returns the RSS by second since the start, and the preemptions of all server processes."""
    threads = [threading.Thread(target=soak.client, args=(i,)) for i in range(arguments.clients)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    rss, preemptions = [], 0
    while (now := time.monotonic() - begin) < seconds:
        if soak.kills < arguments.kills and now >= seconds / 3 * (soak.kills + 1) / (arguments.kills + 1):
            preemptions += metric(server.get("/metrics"), "smartkv:num_preemptions_total")
            restarted.clear()
            soak.up.clear()
            soak.kills += 1
            server.kill()
            server.start()
            soak.up.set()
            restarted.set()
        rss.append((now, server.rss()))
        time.sleep(1)
    preemptions += metric(server.get("/metrics"), "smartkv:num_preemptions_total")
    soak.stopping.set()
    for thread in threads:
        thread.join()
    return rss, preemptions


def mean_rss(rss, begin, end):
    found = [bytes_ for at, bytes_ in rss if begin <= at < end]
    return sum(found) / max(1, len(found))


def promises(soak, rss, seconds, health, preemptions, code):
    """Returns (what, held, what was seen) for each promise."""
    counts = soak.counts
    minute = seconds / 30
    early, late = mean_rss(rss, seconds / 3, seconds / 3 + minute), mean_rss(rss, seconds - minute, seconds)
    answered = sorted(ms for ms in health if ms is not None)
    met = {"prefix hits": counts["hits"], "drafted tokens": counts["drafted"], "preemptions": int(preemptions),
           "disconnects": counts["disconnects"], "garbage": counts["garbage"], "cut by a kill": counts["cut by a kill"]}
    return [
        ("every answer equals its reference answer, none fails", counts["faults"] == 0 and counts["answers"] > 0,
         f"{counts['answers']} answers, {counts['faults']} faults; refused with 429: {counts['status 429']}, "
         f"503: {counts['status 503']}"),
        ("RSS of the end within 5 % of that after a third", early > 0 and abs(late / early - 1) <= RSS_LIMIT,
         f"{early / 2**20:.0f} MiB, then {late / 2**20:.0f} MiB ({100 * (late / max(1, early) - 1):+.1f} %)"),
        (f"/health under {HEALTH_LIMIT_MS} ms", len(answered) == len(health) > 0 and answered[-1] < HEALTH_LIMIT_MS,
         f"asked {len(health)} times: median {answered[len(answered) // 2]:.1f} ms, 99 % "
         f"{answered[int(0.99 * (len(answered) - 1))]:.1f} ms, slowest {answered[-1]:.1f} ms; over the limit "
         f"{sum(ms >= HEALTH_LIMIT_MS for ms in answered)}, unanswered {len(health) - len(answered)}"),
        ("everything was met", all(met.values()), ", ".join(f"{name} {n}" for name, n in met.items())),
        ("SIGTERM ends the server in good order", code == 0, f"exit code {code}"),
    ]


def command(arguments):
    """Returns the command that repeats the run."""
    model = os.path.basename(os.path.normpath(arguments.model))
    options = [] if model.startswith(DEFAULT_MODEL) else ["--model", model]
    options += ["--minutes", f"{arguments.minutes:g}"]
    options += ["--clients", arguments.clients, "--kills", arguments.kills, "--kv-cache-bytes", arguments.kv_cache_bytes]
    options += ["--weights", arguments.weights]
    return "scripts/soak.sh " + " ".join(map(str, options))


def report(arguments, rows, faults):
    cores = len(os.sched_getaffinity(0))
    lines = [
        "# Soak",
        "",
        f"    {command(arguments)}",
        "",
        "One server under everything at once (policies, speculation, shared prompts, preemption, disconnects, garbage,"
        " SIGKILL and restart),",
        "every answer checked against the one that the same request got alone."
        f" {platform.machine()}, {cores} cores, which the clients share;",
        f"load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| promise | held | seen |",
        "|---|---|---|",
        *(f"| {what} | {'yes' if held else '**no**'} | {seen} |" for what, held, seen in rows),
    ]
    if arguments.minutes < 30:
        lines += ["", f"{arguments.minutes:g} minutes show that the script works; memory is judged over 30."]
    if faults:
        lines += ["", "The first faults:", "", *(f"- `{fault}`" for fault in faults)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--kv-cache-bytes", default="96MiB")
    parser.add_argument("--report", default="docs/operate/soak.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(arguments, folder)
        soak = Soak(server, [])
        try:
            for body in requests():
                response = soak.post(body)[1]
                soak.references.append((body, json.loads(response.read())["choices"][0]["text"]))
            print(f"{len(soak.references)} reference answers", flush=True)
            restarted, stopping, results = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Queue()
            restarted.set()
            prober = multiprocessing.Process(target=probe_health, args=(server.port, restarted, stopping, results))
            prober.start()
            rss, preemptions = load(soak, server, 60 * arguments.minutes, arguments, restarted)
            stopping.set()
            health = results.get()
            prober.join()
        finally:
            code = server.stop()
    rows = promises(soak, rss, 60 * arguments.minutes, health, preemptions, code)
    with open(arguments.report, "w", encoding="utf-8") as out:
        out.write(report(arguments, rows, soak.faults))
    for what, held, seen in rows:
        print(f"{'held' if held else 'MISSED'}: {what}: {seen}")
    sys.exit(0 if all(held for _, held, _ in rows) else 1)


if __name__ == "__main__":
    main()
