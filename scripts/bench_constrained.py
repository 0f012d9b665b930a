#!/usr/bin/env python3
"""Measures the cost of constrained sampling over HTTP: many concurrent sequences with a grammar against as many
without.

    scripts/bench_constrained.py --smartkv build/release/smartkv --model MODEL [--weights bf16] [--sequences 16] [--tokens 128]

Each round runs sequences without a grammar, with a regular expression and with a JSON schema, in turn. All generate the
same number of tokens. Prints tokens per second, and the rate of each kind over that of the sequences without a grammar
in the same round: median and minimum. The first round compiles the grammars and does not count. Standard library only.
"""
import argparse
import concurrent.futures
import json
import statistics
import time
import urllib.request

from servers import smartkv_server

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["title", "chapters"],
    "properties": {
        "title": {"type": "string"},
        "chapters": {"type": "array", "minItems": 20, "items": {
            "type": "object", "additionalProperties": False, "required": ["name", "text", "pages"],
            "properties": {"name": {"type": "string"}, "text": {"type": "string"}, "pages": {"type": "integer"}}}},
    },
}
KINDS = {
    "free": {},
    "regex": {"regex": r"([A-Za-z ,.'!?;:\n-]|\d)+"},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "story", "schema": SCHEMA}}},
}


def ask(url, tokens, number, fields):
    body = {"messages": [{"role": "user", "content": f"Write a long story, number {number}, about a town by the sea."}],
            "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, "temperature": 0, **fields}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)["usage"]["completion_tokens"]


def rate(url, args, fields):
    with concurrent.futures.ThreadPoolExecutor(args.sequences) as pool:
        start = time.monotonic()
        written = sum(pool.map(lambda i: ask(url, args.tokens, i, fields), range(args.sequences)))
        return written / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with smartkv_server(args.smartkv, args.model, "--weights", args.weights, "--max-sequences", str(args.sequences)) as url:
        url += "/v1/chat/completions"
        rounds = [{kind: rate(url, args, fields) for kind, fields in KINDS.items()} for _ in range(args.rounds + 1)][1:]
    print("| kind | tokens/s | to free | least |\n|---|---|---|---|")
    for kind in KINDS:
        ratios = [one[kind] / one["free"] for one in rounds]
        print(f"| {kind} | {statistics.median(one[kind] for one in rounds):.0f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} |")


if __name__ == "__main__":
    main()
