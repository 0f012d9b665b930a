#!/usr/bin/env python3
"""Compares a server on a GPU with one on the CPU. Standard library only.
  scripts/check_gpu.py --smartkv PROGRAM --model FILE [--device cuda:0]
For each preset, policy and method of drafting, both answer the same questions greedily. Prints how many tokens are the
same until the answers part, as roundings of the two make them do sooner or later, and the largest difference of their
log probabilities until then. Then measures what the GPU serves to 32 clients at once. Exits with 1 if a request fails,
or if with policy full an answer parts at its first token or log probabilities differ by more than 0.25."""
import argparse
import concurrent.futures
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

from servers import smartkv_server

TEXT = pathlib.Path(__file__).parents[1] / "assets/evaluation/prose.txt"
PROMPT, TOKENS, CLIENTS = 7000, 48, 32  # characters, tokens of an answer
METHODS = ["ngram", {"method": "self"}, {"method": "self", "kv_cache": "pillar_attn"}, "auto"]
OFFLOAD = {"method": "self", "offload": True}  # on GPUs only
failures = []


def ask(url, **body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        failures.append(f"{body}: {error.read().decode()}"[-400:])
        return None


def compare(first, second):
    """Returns how many tokens at the beginning are the same, and the largest difference of their log probabilities."""
    a, b = (answer["choices"][0]["logprobs"] for answer in (first, second))
    same = next((i for i, pair in enumerate(zip(a["tokens"], b["tokens"])) if pair[0] != pair[1]), len(a["tokens"]))
    return same, max((abs(x - y) for x, y in zip(a["token_logprobs"][:same], b["token_logprobs"])), default=0)


def check_answers(cpu, gpu, prompts, policies, methods):
    print("| request | tokens that are the same | log probabilities differ by |\n|---|---|---|")
    rows = [({"kv_cache": name}, name) for name in policies] + [({"speculative": one}, json.dumps(one)) for one in methods]
    for fields, name in rows:
        plain = {} if "speculative" in fields else fields  # the CPU answers without drafts
        common = dict(max_tokens=TOKENS, temperature=0, ignore_eos=True, logprobs=1)
        pairs = [(ask(cpu, prompt=prompt, **common, **plain), ask(gpu, prompt=prompt, **common, **fields)) for prompt in prompts]
        if any(None in pair for pair in pairs):
            continue
        same, apart = zip(*(compare(*pair) for pair in pairs))
        print(f"| {name} | {sum(same)} of {TOKENS * len(prompts)} | {max(apart):.3f} |", flush=True)
        if name == "full" and (min(same) == 0 or max(apart) > 0.25):
            failures.append("the answers with policy full differ")


def check_load(gpu, text):
    for name in ("full", "k8v8", "k4v4", "balanced"):
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            begin = time.monotonic()
            answers = list(clients.map(lambda i: ask(gpu, prompt=text[i * 2000:i * 2000 + 4000], max_tokens=128,
                                                     ignore_eos=True, seed=i, kv_cache=name), range(CLIENTS)))
            seconds = time.monotonic() - begin
        tokens = sum(answer["usage"]["completion_tokens"] for answer in answers if answer)
        print(f"{name}: {CLIENTS} clients, {tokens / seconds:.0f} tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    text = TEXT.read_text(encoding="utf-8")
    prompts = [text[begin:begin + PROMPT] for begin in (0, 25000, 50000, 75000)]
    on_device, methods = ["--backend", "torch", "--device", arguments.device], METHODS
    if arguments.device != "cpu":
        methods = [*METHODS, OFFLOAD]
        on_device += ["--kv-cache-bytes", "8GiB", "--kv-offload-bytes", "1GiB"]
    with smartkv_server(arguments.smartkv, arguments.model, "--weights", "bf16") as cpu, \
            smartkv_server(arguments.smartkv, arguments.model, "--weights", "bf16", *on_device) as gpu:
        details = json.load(urllib.request.urlopen(gpu + "/v1/models"))["data"][0]["details"]
        policies = [one["name"] for one in details["presets"]] + details["policies"]
        check_answers(cpu, gpu, prompts, policies, methods)
        check_load(gpu, text)
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
