#!/usr/bin/env python3
"""Prints a Markdown table of block_summary's memory and cost by model, (W, B, r, s) and length, against the full cache.

    scripts/bench_summaries.py --text FILE                                # the default model
    scripts/bench_summaries.py --text FILE --models A.gguf B.gguf --tokens 32000 --marks 8000 16000 32000 \\
        --grid 1024,64,8,0 1024,64,8,4 4096,512,8,4

W: exact tokens of the window. B: tokens of a block. r: summaries of a block. s: exact tokens of a block. Each policy
runs in its own process (`smartkv bench --long`), so that its memory is measured alone. RSS is that of the process, with
its weights. Perplexity is that of the last 1,024 tokens before each length, so it is the same in every run. Rates mean
nothing on a machine that does other work.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
HEADER = ("| model | W, B, r, s | tokens | KV MB | RSS MB | prefill tokens/s | decode tokens/s | perplexity | against full |\n"
          "|---|---|---|---|---|---|---|---|---|")


def setting(text):
    """Parses "1024,64,8,4" into (W, B, r, s)."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 4:
        raise argparse.ArgumentTypeError(f"expected W,B,r,s as four integers, found {text!r}")
    return tuple(numbers)


def policy_of(numbers, salience):
    """Returns the policy of a setting. None stands for the full cache."""
    if numbers is None:
        return "full"
    window, block, summaries, salient = numbers
    policy = {"policy": "block_summary", "window": window, "block": block, "r": summaries, "salient": salient}
    return policy | ({"salience": salience} if salient > 0 else {})


def measure(program, model, policy, options):
    """Returns the report of one process."""
    command = [str(program), "bench", "--model", str(model), "--text", str(options.text), "--long", str(options.tokens),
               "--threads", str(options.threads), "--rope-scaling", options.rope_scaling, "--json",
               "--long-policies", policy if isinstance(policy, str) else json.dumps(policy), "--marks"]
    command += [str(mark) for mark in options.marks or [options.tokens]]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}")
    return json.loads(run.stdout)


def rows(model, numbers, report, full):
    """Returns the table lines of a report. `full`: perplexities of the full cache by length, filled from its report."""
    for row in report["rows"]:
        tokens, perplexity = row["tokens"], row["perplexity"]
        if numbers is None:
            full[tokens] = perplexity
        change = "" if numbers is None else f"{100 * (perplexity / full[tokens] - 1):+.2f} %"
        prefill = row["prefill_tokens_per_s"]
        yield (f"| {model} | {'full' if numbers is None else ', '.join(map(str, numbers))} | {tokens:,} | {row['kv_bytes'] / 1e6:.1f} | "
               f"{row['resident_bytes'] / 1e6:.0f} | {f'{prefill:.0f}' if prefill else ''} | {row['decode_tokens_per_s']:.1f} | "
               f"{perplexity:.2f} | {change} |")


def main():
    """Runs the full cache and every setting for every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/smartkv")
    parser.add_argument("--models", type=pathlib.Path, nargs="+", default=[MODEL], metavar="FILE")
    parser.add_argument("--text", type=pathlib.Path, required=True,
                        help="UTF-8 text file with at least --tokens tokens")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--marks", type=int, nargs="+", help="lengths at which to measure, in addition to --tokens")
    parser.add_argument("--grid", type=setting, nargs="+", metavar="W,B,r,s",
                        default=[(1024, 64, 8, 0), (1024, 64, 8, 4), (1024, 64, 4, 4), (1024, 512, 8, 4), (4096, 512, 8, 4)])
    parser.add_argument("--salience", default="attention",
                        help="score by which exact tokens of a block are chosen (attention)")
    parser.add_argument("--rope-scaling", default="yarn", help="beyond the model's own context: none, linear, dynamic or yarn (yarn)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 uses every core")
    options = parser.parse_args()
    print(HEADER, flush=True)
    for model in options.models:
        full = {}
        for numbers in [None, *options.grid]:
            report = measure(options.program, model, policy_of(numbers, options.salience), options)
            for line in rows(report["model"], numbers, report, full):
                print(line, flush=True)


if __name__ == "__main__":
    main()
