#!/usr/bin/env python3
"""Prints how far mixed_precision's forecast of importance is off, by learning rate, beside the moving average.

    scripts/bench_forecast.py --text shared/train.txt --rates 0.003 0.01 0.03 0.1

The error is the root mean square of log importance at the next boundary, as usage.kv_cache reports it, over requests of
--prompt characters from places spread over the text, each with --tokens tokens of output: mean, and standard error over requests.
Choose on a text for training, report on another.
"""
import argparse
import json
import math
import pathlib
import statistics
import urllib.request

from servers import smartkv_server

ROOT = pathlib.Path(__file__).resolve().parent.parent


def complete(url, prompt, tokens, policy):
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": 1, "kv_cache": policy}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as response:
        return json.load(response)["usage"]["kv_cache"]["details"]


def line(name, errors):
    spread = statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else 0
    print(f"| {name} | {statistics.mean(errors):.4f} | {spread:.4f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", default=ROOT / "build/release/smartkv")
    parser.add_argument("--model", default=ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--text", required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.003, 0.01, 0.03, 0.1])
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=8000, help="characters")
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    text = pathlib.Path(options.text).read_text(encoding="utf-8")
    starts = [i * (len(text) - options.prompt) // options.requests for i in range(options.requests)]
    print("| learning rate | error | ± |\n|---|---|---|")
    with smartkv_server(options.smartkv, options.model, "--prefix-cache-bytes", "0") as url:
        for rate in options.rates:
            details = [complete(url, text[start:start + options.prompt], options.tokens,
                                {"policy": "mixed_precision", "bits": 3, "forecast": True, "forecast_lr": rate}) for start in starts]
            if rate == options.rates[0]:
                line("(moving average)", [each["average_rms_error"] for each in details])
            line(f"{rate:g}", [each["forecast_rms_error"] for each in details])


if __name__ == "__main__":
    main()
