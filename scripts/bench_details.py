#!/usr/bin/env python3
"""Prints the statistics that policies report (`details` in usage.kv_cache), over answers to places spread over a text.

    scripts/bench_details.py --text train.txt --fields average_rms_error forecast_rms_error --policies \\
        '{"policy": "mixed_precision", "bits": 3, "forecast": true, "forecast_lr": 0.01}' \\
        '{"policy": "mixed_precision", "bits": 3, "forecast": true, "forecast_lr": 0.05}'

Prints a row for each policy and field: the mean over the answers, its standard error, minimum and maximum. Choose a
parameter on one text and report its results on another.
"""
import argparse
import json
import math
import pathlib
import statistics
import urllib.request

from servers import smartkv_server

ROOT = pathlib.Path(__file__).resolve().parent.parent


def details(url, prompt, tokens, policy):
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": 1, "kv_cache": policy}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as response:
        return json.load(response)["usage"]["kv_cache"]["details"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", default=ROOT / "build/release/smartkv")
    parser.add_argument("--model", default=ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--text", required=True)
    parser.add_argument("--policies", type=json.loads, nargs="+", required=True)
    parser.add_argument("--fields", nargs="+", required=True)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=8000, help="characters of a prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    options = parser.parse_args()
    text = pathlib.Path(options.text).read_text(encoding="utf-8")
    starts = [i * (len(text) - options.prompt) // options.requests for i in range(options.requests)]
    print("| policy | field | mean | ± | least | most |\n|---|---|---|---|---|---|")
    with smartkv_server(options.smartkv, options.model, "--prefix-cache-bytes", "0") as url:
        for policy in options.policies:
            found = [details(url, text[start:start + options.prompt], options.tokens, policy) for start in starts]
            for field in options.fields:
                values = [each[field] for each in found]
                error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0
                print(f"| `{json.dumps(policy)}` | {field} | {statistics.mean(values):.4f} | {error:.4f} | {min(values):.4f} "
                      f"| {max(values):.4f} |", flush=True)


if __name__ == "__main__":
    main()
