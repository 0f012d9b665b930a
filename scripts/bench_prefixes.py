#!/usr/bin/env python3
"""Measures over HTTP how much sooner the first token arrives for a second question about the same text, by cache
policy.

    scripts/bench_prefixes.py --smartkv build/release/smartkv --model MODEL --text FILE [--weights bf16] [--tokens 4000]
                              [--policies full,balanced,bounded,k4v4] [--repetitions 3]

For each policy and repetition it takes a new text of --tokens tokens from FILE (any plain text) and asks a question
about it, then another one, and a third one after the server was restarted with the same prefix_cache_dir. Prints a
table of the median seconds to the first token, and their ratios. Standard library only.
"""
import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time

from servers import events, smartkv_server

QUESTIONS = ["Who is the text about?", "Where does it take place?", "What happens in the end?"]


class Client:
    def __init__(self, url):
        self.address = url.removeprefix("http://")

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return json.loads(response.read() or "{}")

    def ask(self, text, question):
        """Returns the seconds to the first token, and the number of cached tokens of the prompt."""
        body = {"messages": [{"role": "user", "content": f"{text}\n\n{question}"}], "max_tokens": 16,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection(self.address, timeout=600)
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"{response.status}: {response.read().decode()[:500]}")
        first = usage = None
        for event in events(response):
            if first is None and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - start
            usage = event.get("usage") or usage
        return first, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def texts(client, file, n_tokens, count):
    """Returns `count` different texts of about n_tokens tokens each."""
    with open(file, encoding="utf-8", errors="replace") as source:
        words = source.read(40 * n_tokens * count).split()
    found, at = [], 0
    for _ in range(count):
        n = n_tokens // 2
        while True:
            if at + n > len(words):
                sys.exit(f"{file}: expected about {n_tokens * count} tokens of text, found fewer")
            text = " ".join(words[at:at + n])
            tokens = len(client.request("POST", "/tokenize", {"prompt": text})["tokens"])
            if abs(tokens - n_tokens) <= n_tokens // 100:
                break
            n = max(1, n * n_tokens // tokens)
        found.append(text)
        at += n
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--policies", default="full,balanced,bounded,k4v4")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()

    print(f"first token of a question about {args.tokens} tokens, seconds, median of {args.repetitions}\n")
    print("| policy | first question | second | sooner | after a restart | sooner |")
    print("|---|---|---|---|---|---|")
    for policy in args.policies.split(","):
        with tempfile.TemporaryDirectory() as directory:
            options = ["--weights", args.weights, "--kv-cache", policy, "--prefix-cache-dir", directory]
            first, second, third = [], [], []
            with smartkv_server(args.smartkv, args.model, *options) as url:
                client = Client(url)
                subjects = texts(client, args.text, args.tokens, args.repetitions)
                for text in subjects:
                    seconds, cached, _ = client.ask(text, QUESTIONS[0])
                    first.append(seconds)
                    seconds, cached, prompt = client.ask(text, QUESTIONS[1])
                    second.append(seconds)
                    print(f"{policy}: {cached} of {prompt} tokens were there", file=sys.stderr)
            with smartkv_server(args.smartkv, args.model, *options) as url:
                client = Client(url)
                for text in subjects:
                    seconds, cached, prompt = client.ask(text, QUESTIONS[2])
                    third.append(seconds)
                    print(f"{policy}: {cached} of {prompt} tokens were there after the restart", file=sys.stderr)
        a, b, c = map(statistics.median, (first, second, third))
        print(f"| {policy} | {a:.2f} | {b:.2f} | {a / b:.1f} x | {c:.2f} | {a / c:.1f} x |", flush=True)


if __name__ == "__main__":
    main()
