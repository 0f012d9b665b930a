"""Runs llama.cpp and SmartKV in alternation on the same weights and prints a table of ratios. See compare_llama_cpp.sh."""
import argparse
import collections
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from servers import free_port


def numbers(text):
    return [int(n) for n in text.split(",")]


parser = argparse.ArgumentParser()
parser.add_argument("--llama", required=True)
parser.add_argument("--smartkv", required=True)
parser.add_argument("--pair", action="append", nargs=3, required=True, metavar=("LABEL", "WEIGHTS", "GGUF"),
                    help="name of a row, SmartKV's --weights, and the file that both load; the first is also served")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--repetitions", type=int, default=3, help="repetitions in a round, of which the best counts")
parser.add_argument("--prompts", type=numbers, help="prompt lengths of the prefills; 0 leaves prefills out")
parser.add_argument("--depths", type=numbers)
parser.add_argument("--batches", type=numbers, help="sequences that decode side by side, 512 tokens deep")
parser.add_argument("--quick", action="store_true",
                    help="shorter defaults: prompts of 512, depths 0 and 4,096, 1 and 16 sequences")
parser.add_argument("--no-serving", action="store_true", help="do not measure start, first token and memory")
parser.add_argument("--json")
args = parser.parse_args()
args.prompts = args.prompts or ([512] if args.quick else [512, 4096])
args.depths = args.depths or ([0, 4096] if args.quick else [0, 4096, 8000])
args.batches = args.batches or ([1, 16] if args.quick else [1, 4, 8, 16])

threads = len(os.sched_getaffinity(0))
rates = {"llama.cpp": collections.defaultdict(list), "SmartKV": collections.defaultdict(list)}
limits = collections.defaultdict(list)  # rates that bandwidth and arithmetic of the machine allow


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def fitting(prompts, depth):
    """Returns the prompts that fit at a depth. Prompts of 4,096 tokens run only in an empty and a half full cache,
    because they would exceed a small model's context at larger depths."""
    return [p for p in prompts if p <= 512 or depth + p <= 8704]


def llama_bench(model, label, prompts, depths):
    to = rates["llama.cpp"]
    for depth in depths:
        command = [f"{args.llama}/llama-bench", "-m", model, "-t", str(threads), "-n", "32", "-r", str(args.repetitions), "-o", "json",
                   "-p", ",".join(map(str, fitting(prompts, depth))) or "0", "-d", str(depth)]
        for row in json.loads(run(command)):
            best = max(row["samples_ts"])
            if row["n_prompt"]:
                to[label, f"prefill {row['n_prompt']}", depth, 1].append(best)
            else:
                to[label, "decode", depth, 1].append(best)


def llama_batches(model, label):
    wanted = ",".join(map(str, args.batches))
    out = run([f"{args.llama}/llama-batched-bench", "-m", model, "-t", str(threads), "-c", str(640 * max(args.batches)), "-npp", "512",
               "-ntg", "32", "-npl", wanted, "--output-format", "jsonl"])
    for line in out.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rates["llama.cpp"][label, "decode", 512, row["pl"]].append(row["speed_tg"])


def smartkv_bench(model, label, weights, prompts, depths, batches):
    for depth in depths:
        report = json.loads(run([args.smartkv, "bench", "--json", "--model", model, "--weights", weights,
                                 "--prompts", ",".join(map(str, fitting(prompts, depth))), "--depths", str(depth),
                                 "--batches", ",".join(map(str, batches)), "--decode-tokens", "32",
                                 "--repetitions", str(args.repetitions), "--limits"]))
        for row in report["rows"]:
            kind = "decode" if row["kind"] == "decode" else f"prefill {row['tokens']}"
            rates["SmartKV"][label, kind, row["depth"], row["batch"]].append(row["tokens_per_s_best"])
            limits[label, kind, row["depth"], row["batch"]].append(row.get("tokens_per_s_limit", 0))


def serving(name, command, port):
    """Returns the seconds from start to the first answer, the seconds of a one-token request when warm, and resident MB
    after that."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}).encode()

    def ask():
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    try:
        while True:
            try:
                ask()
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None:
                    sys.exit(f"{name} ended with {process.returncode}")
                time.sleep(0.005)
        first = time.monotonic() - start
        warm = []
        for _ in range(10):
            begin = time.monotonic()
            ask()
            warm.append(time.monotonic() - begin)
        with open(f"/proc/{process.pid}/status") as status:
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    rates[name]["serving", "start to first answer, s", 0, 1].append(first)
    rates[name]["serving", "time to first token, warm, s", 0, 1].append(statistics.median(warm))
    rates[name]["serving", "resident memory, MB", 0, 1].append(resident)


for i in range(args.rounds):
    for label, weights, gguf in args.pair:
        print(f"round {i + 1} of {args.rounds}: {label}", file=sys.stderr, flush=True)
        smartkv_bench(gguf, label, weights, args.prompts, args.depths, [1])
        llama_bench(gguf, label, args.prompts, args.depths)
        smartkv_bench(gguf, label, weights, [], [512], args.batches)
        llama_batches(gguf, label)
    if args.no_serving:
        continue
    port = free_port()
    _, weights, gguf = args.pair[0]
    serving("SmartKV", [args.smartkv, "serve", "--model", gguf, "--weights", weights, "--port", str(port),
                        "--log-level", "error"], port)
    serving("llama.cpp", [f"{args.llama}/llama-server", "-m", gguf, "--port", str(port), "-t", str(threads)], port)

rows = []
for key in rates["llama.cpp"]:
    if key not in rates["SmartKV"]:
        continue
    label, kind, depth, batch = key
    smaller = label == "serving"
    pick = min if smaller else max
    theirs, ours = pick(rates["llama.cpp"][key]), pick(rates["SmartKV"][key])
    ratio = theirs / ours if smaller else ours / theirs
    pairs = zip(rates["llama.cpp"][key], rates["SmartKV"][key])
    median = statistics.median((t / o if smaller else o / t) for t, o in pairs)
    rows.append(dict(weights=label, what=kind, depth=depth, sequences=batch, llama_cpp=theirs, smartkv=ours, ratio=ratio,
                     median_ratio=median, limit=max(limits.get(key, [0]))))
print(f"{threads} threads, {args.rounds} rounds in alternation; rates are tokens/s, best of all rounds; ratio > 1: SmartKV is ahead")
print("limit: the rate that the machine's bandwidth and arithmetic, measured by `smartkv bench --limits`, allow")
print("| weights | what | depth | sequences | llama.cpp | SmartKV | ratio of bests | median ratio | limit |")
print("|---|---|---|---|---|---|---|---|---|")
for r in rows:
    digits = 3 if r["what"].endswith(" s") else 1
    print(f"| {r['weights']} | {r['what']} | {r['depth']:,} | {r['sequences']} | {r['llama_cpp']:,.{digits}f} | "
          f"{r['smartkv']:,.{digits}f} | {r['ratio']:.2f} | {r['median_ratio']:.2f} | "
          + (f"{r['limit']:,.{digits}f} |" if r["limit"] else "|"))
if args.json:
    with open(args.json, "w") as file:
        json.dump(rows, file, indent=1)
