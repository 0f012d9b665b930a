"""Runs OpenVINO GenAI and SmartKV in alternation on the same weights and prints a table of ratios. See
compare_openvino.sh."""
import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys


def numbers(text):
    return [int(n) for n in text.split(",")]


def unpack(gguf, folder):
    """Writes a GGUF file's weights, dequantized, and its tokenizer as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = pathlib.Path(gguf)
    where = dict(pretrained_model_name_or_path=str(file.parent), gguf_file=file.name)
    AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def openvino_once(model, kv, prompts, repetitions):
    """Measures one process. Prints {prompt: [prefill, decode]} in tokens per second, the best of each."""
    import numpy
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(model, "CPU", KV_CACHE_PRECISION=kv, INFERENCE_NUM_THREADS=len(os.sched_getaffinity(0)),
                                          PERFORMANCE_HINT="LATENCY")
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = 33, True, False
    rates = {}
    for n in prompts:
        prefills, decodes = [], []
        for i in range(repetitions + 1):  # the first run compiles kernels for the shape
            ids = numpy.random.default_rng(i).integers(1000, 40000, size=(1, n), dtype=numpy.int64)
            tokens = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
            metrics = pipeline.generate(tokens, config).perf_metrics
            if i > 0:
                prefills.append(n / metrics.get_ttft().mean * 1000)
                decodes.append(1000 / metrics.get_tpot().mean)
        rates[n] = [max(prefills), max(decodes)]
    print(json.dumps(rates))


def run(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout)


def measure(args):
    ours, theirs = collections.defaultdict(list), collections.defaultdict(list)
    for i in range(args.rounds):
        for label, weights, folder in args.pair:
            print(f"round {i + 1} of {args.rounds}: {label}", file=sys.stderr, flush=True)
            for n in args.prompts:
                report = run([args.smartkv, "bench", "--json", "--model", args.model, "--weights", weights, "--prompts", str(n),
                              "--depths", "0", "--batches", "1", "--decode-tokens", "2", "--repetitions", str(args.repetitions)])
                ours[label, n, "prefill"].append(max(r["tokens_per_s_best"] for r in report["rows"] if r["kind"] == "prefill"))
                report = run([args.smartkv, "bench", "--json", "--model", args.model, "--weights", weights, "--prompts", "",
                              "--depths", str(n), "--batches", "1", "--decode-tokens", "32", "--repetitions", str(args.repetitions)])
                ours[label, n, "decode"].append(max(r["tokens_per_s_best"] for r in report["rows"] if r["kind"] == "decode"))
            for kv in args.kv:
                rates = run([sys.executable, __file__, "once", folder, kv, ",".join(map(str, args.prompts)), str(args.repetitions)])
                for n, (prefill, decode) in rates.items():
                    theirs[label, int(n), "prefill", kv].append(prefill)
                    theirs[label, int(n), "decode", kv].append(decode)
    rows = []
    for (label, n, what, kv), rates in theirs.items():
        own = ours[label, n, what]
        rows.append(dict(weights=label, kv=kv, what=what, tokens=n, openvino=max(rates), smartkv=max(own), ratio=max(own) / max(rates),
                         median_ratio=statistics.median(o / t for o, t in zip(own, rates))))
    print(f"{len(os.sched_getaffinity(0))} threads, {args.rounds} rounds in alternation; rates are tokens/s, best of all rounds")
    print("| weights | OpenVINO's cache | what | tokens before | OpenVINO | SmartKV | ratio of bests | median ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        before = 0 if r["what"] == "prefill" else r["tokens"]
        what = f"prefill {r['tokens']:,}" if r["what"] == "prefill" else "decode"
        print(f"| {r['weights']} | {r['kv']} | {what} | {before:,} | {r['openvino']:,.1f} | {r['smartkv']:,.1f} | {r['ratio']:.2f} | "
              f"{r['median_ratio']:.2f} |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if sys.argv[1:2] == ["unpack"]:
    unpack(*sys.argv[2:])
elif sys.argv[1:2] == ["once"]:
    openvino_once(sys.argv[2], sys.argv[3], numbers(sys.argv[4]), int(sys.argv[5]))
else:
    parser = argparse.ArgumentParser()
    parser.add_argument("measure")
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True, help="model file that SmartKV loads")
    parser.add_argument("--pair", action="append", nargs=3, required=True, metavar=("LABEL", "WEIGHTS", "FOLDER"),
                        help="OpenVINO's weight format, SmartKV's --weights, and OpenVINO's model")
    parser.add_argument("--kv", type=lambda text: text.split(","), default=["u8", "f16"])
    parser.add_argument("--prompts", type=numbers, default=[512, 4096])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--json")
    measure(parser.parse_args())
