#!/usr/bin/env python3
"""Compares answers of every drafting method with those of plain decoding, over HTTP: greedy, and sampled with a seed.

    scripts/check_speculation.py --smartkv build/release/smartkv --model MODEL --prompts FILE [--count 50]
    scripts/check_speculation.py ... --sampled [--runs 10]

Greedy: runs every method under every cache policy with --count prompts. Prints a line per policy and method with the
number of answers that differ and of accepted tokens, and each difference.

--sampled: runs a few prompts with a seed and two choices at temperature 1, every method with and without adapting,
--runs times alone and --runs times beside other requests. Prints the number of different answers, including plain
decoding's, which has to be 1.

Logits do not depend on the batch, and random numbers depend only on seed, choice and position, so no token may differ.
The exit code is 1 if one does. Standard library only.
"""
import argparse
import concurrent.futures
import json
import sys
import urllib.error
import urllib.request

from servers import smartkv_server

POLICIES = [
    "full",
    {"policy": "streaming", "tokens": 256},
    {"policy": "random", "tokens": 256},
    {"policy": "snapkv", "tokens": 256},
    {"policy": "gated_eviction", "tokens": 256},
    {"policy": "mixed_precision", "bits": 4.5},
    "k8v8",
    "k4v4",
]
METHODS = [
    {"method": "ngram", "adaptive": False},
    {"method": "draft_model", "adaptive": False},
    {"method": "self", "kv_cache": "k4v4", "adaptive": False},
    {"method": "self", "weights": "int4", "kv_cache": {"policy": "streaming", "tokens": 256}, "adaptive": False},
    {"method": "auto"},
]
SAMPLED_POLICIES = ["full", {"policy": "gated_eviction", "tokens": 256}]
SAMPLED_PROMPTS = 2


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode()[:500]}")


def check_greedy(args, url, prompts, methods):
    def answers(policy, method):
        def ask(prompt):
            return post(url, {"messages": [{"role": "user", "content": prompt}], "temperature": 0,
                              "max_tokens": args.tokens, "kv_cache": policy, "speculative": method})
        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            return list(pool.map(ask, prompts))

    different = 0
    for policy in POLICIES:
        plain = answers(policy, {"method": "off"})
        for method in methods:
            drafted = answers(policy, method)
            accepted = sum(a["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] for a in drafted)
            rejected = sum(a["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] for a in drafted)
            wrong = [i for i in range(args.count)
                     if plain[i]["choices"][0]["message"] != drafted[i]["choices"][0]["message"]]
            different += len(wrong)
            print(f"{json.dumps(policy):50} {json.dumps(method):95} {args.count} prompts, {len(wrong)} differ, "
                  f"accepted {accepted}, rejected {rejected}", flush=True)
            for i in wrong:
                print(f"  prompt {i}:\n    plain   {plain[i]['choices'][0]['message']['content']!r}\n"
                      f"    drafted {drafted[i]['choices'][0]['message']['content']!r}")
    return different


def check_sampled(args, url, prompts, methods):
    def ask(prompt, policy, method, seed):
        answer = post(url, {"messages": [{"role": "user", "content": prompt}], "temperature": 1, "seed": seed, "n": 2,
                            "max_tokens": args.tokens, "kv_cache": policy, "speculative": method})
        return (json.dumps([[choice["message"], choice["finish_reason"]] for choice in answer["choices"]]),
                answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"])

    different = 0
    both = [dict(method, adaptive=adaptive) for method in methods for adaptive in (False, True)]
    both = [method for i, method in enumerate(both) if method not in both[:i]]
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        for policy in SAMPLED_POLICIES:
            for seed, prompt in enumerate(prompts[:SAMPLED_PROMPTS]):
                plain, _ = ask(prompt, policy, {"method": "off"}, seed)
                for method in both:
                    alone = [ask(prompt, policy, method, seed) for _ in range(args.runs)]
                    load = [pool.submit(ask, prompts[i % len(prompts)], policy, methods[i % len(methods)], 1000 + i)
                            for i in range(args.runs)]
                    loaded = list(pool.map(lambda _: ask(prompt, policy, method, seed), range(args.runs)))
                    concurrent.futures.wait(load)
                    found = {answer for answer, _ in alone + loaded} | {plain}
                    different += len(found) - 1
                    print(f"{json.dumps(policy):45} prompt {seed} {json.dumps(method):95} {args.runs} runs alone, "
                          f"{args.runs} under load: {len(found)} answer{'s' if len(found) > 1 else ''}, accepted "
                          f"{sum(accepted for _, accepted in alone + loaded)} tokens", flush=True)
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="file with prompts, one per line")
    parser.add_argument("--draft-model", help="without it, method draft_model is left out")
    parser.add_argument("--context", default="", help="a text to put before each prompt, so that caches compress")
    parser.add_argument("--context-bytes", type=int, default=2400)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--runs", type=int, default=10,
                        help="with --sampled: runs of each method, alone and under load")
    args = parser.parse_args()

    with open(args.prompts, encoding="utf-8") as file:
        prompts = [line.strip() for line in file if line.strip()]
    context = open(args.context, encoding="utf-8").read() if args.context else ""
    step = max(1, (len(context) - args.context_bytes) // args.count)
    prompts = [context[i * step:i * step + args.context_bytes] + "\n\n" + prompts[i % len(prompts)]
               for i in range(args.count)]
    options = ["--draft-weights", "int4", "--max-sequences", str(args.at_once)]
    if args.draft_model:
        options += ["--draft-model", args.draft_model]
    methods = [m for m in METHODS if m["method"] != "draft_model" or args.draft_model]

    with smartkv_server(args.smartkv, args.model, *options) as url:
        check = check_sampled if args.sampled else check_greedy
        different = check(args, url + "/v1/chat/completions", prompts, methods)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
