#!/usr/bin/env python3
"""Checks docs/operate/grafana.json and deploy/prometheus with a real Prometheus that scrapes a server under load. Needs
Debian's prometheus, and a server with the default model that has no other clients:

    scripts/serve.sh &
    apt-get install prometheus
    scripts/check_metrics.py --url http://127.0.0.1:8080

Starts Prometheus with the project's alerts in a temporary folder. Sends requests that use every counter (policies,
speculation, a repeated prompt, shadow mode, streams, mistakes), and records what the clients saw: tokens, statuses,
seconds, cached tokens, drafts, and the statistics of the caches. The exit code is 1 if
  - an expression is refused, a panel has no data, or an alert is unhealthy or fires,
  - an expression uses a name that the server does not provide,
  - a metric differs from what the clients saw.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from servers import events, free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRAPE_S = 1
WAIT_S = 60


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


class Seen:
    """Sums over requests as the clients saw them, by the metric that should have the same value."""

    def __init__(self):
        self.sums = collections.Counter()   # by (metric, labels)
        self.seconds = []                   # duration of each answered request

    def add(self, metric, value, **labels):
        self.sums[metric, tuple(sorted(labels.items()))] += value

    def answer(self, route, answer, seconds, streamed):
        usage, timings = answer["usage"], answer.get("timings", {})
        cache = usage["kv_cache"]
        policy = cache["policy"]
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        self.seconds.append(seconds)
        self.add("http_requests_total", 1, route=route, code="200")
        self.add("generation_tokens_total", usage["completion_tokens"])
        self.add("prompt_tokens_total", usage["prompt_tokens"] - cached)
        self.add("prefix_cache_hits_total", cached)
        self.add("policy_generation_tokens_total", usage["completion_tokens"], policy=policy)
        self.add("policy_prompt_tokens_total", usage["prompt_tokens"] - cached, policy=policy)
        self.add("request_success_total", 1, finished_reason=answer["choices"][0]["finish_reason"])
        self.add("time_to_first_token_seconds_count", 1)
        self.add("e2e_request_latency_seconds_count", 1)
        self.add("request_queue_time_seconds_count", 1)
        self.add("time_per_output_token_seconds_count", usage["completion_tokens"] - 1)
        if not streamed and timings:
            self.add("e2e_request_latency_seconds_sum", timings["total_ms"] / 1000)
            self.add("request_queue_time_seconds_sum", timings["queued_ms"] / 1000)
        if speculation := usage.get("speculative"):
            self.add("spec_decode_num_draft_tokens_total", speculation["drafted"])
            self.add("spec_decode_num_accepted_tokens_total", speculation["accepted"])
        for key, metric in {"channel_backoffs": "channel_backoffs_total", "drift_samples": "kv_drift_samples_total",
                            "drift_l2_mean": "kv_drift_l2_sum", "drift_l2_max": "kv_drift_l2_max_sum",
                            "watermark_hits": "summary_watermark_hits_total", "outlier_entries": "summary_outlier_entries_sum",
                            "summary_levels": "summary_levels_sum", "packed_layers": "packed_layers_sum"}.items():
            if key in cache.get("details", cache):
                self.add(metric, cache.get("details", cache)[key], policy=policy)


def load(url, seen):
    """Sends requests one at a time, so that the clients can measure the sums of their times; then wrong requests."""
    text = (ROOT / "assets/evaluation/prose.txt").read_text(encoding="utf-8")[:2000]
    requests = [
        {"kv_cache": "full"},
        {"kv_cache": "full"},  # has a prefix hit
        {"kv_cache": "balanced", "speculative": {"method": "ngram", "adaptive": False}},
        {"kv_cache": {"policy": "k4v4", "shadow": 1}},
        {"kv_cache": {"policy": "block_summary", "window": 64}},
        {"kv_cache": {"policy": "channel_packed"}},
        {"kv_cache": "full", "stream": True, "stream_options": {"include_usage": True}},
    ]
    for fields in requests:
        body = {"prompt": text + text[:500], "max_tokens": 24, "temperature": 0, **fields}
        begin = time.perf_counter()
        if fields.get("stream"):
            answer = read_stream(url, body)
        else:
            answer = post(url + "/v1/completions", body)
        seen.answer("/v1/completions", answer, time.perf_counter() - begin, fields.get("stream", False))
    for path, body, code in [("/v1/completions", {"prompt": "x", "temperature": -1}, 400), ("/v1/embeddings", {"input": "x"}, 501),
                             ("/v1/completions", {"prompt": "x", "max_tokens": 10 ** 9, "kv_cache": "none such"}, 400)]:
        try:
            post(url + path, body)
        except urllib.error.HTTPError as error:
            if error.code != code:
                sys.exit(f"{path}: expected {code}, found {error.code}: {error.read().decode()}")
            seen.add("http_requests_total", 1, route=path, code=str(code))


def read_stream(url, body):
    """Joins the chunks of a stream into one answer."""
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = {}
    with urllib.request.urlopen(request, timeout=600) as response:
        for chunk in events(response):
            if chunk["choices"] and chunk["choices"][0]["finish_reason"]:
                answer["choices"] = chunk["choices"]
            if chunk.get("usage"):
                answer["usage"] = chunk["usage"]
    return answer


def start_prometheus(folder, url):
    target = urllib.parse.urlparse(url).netloc
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("127.0.0.1:8080", target).replace("interval: 10s", f"interval: {SCRAPE_S}s")
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    (folder / "alerts.yml").write_bytes((ROOT / "deploy/prometheus/alerts.yml").read_bytes())
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address={address}", "--log.level=warn"])
    return process, f"http://{address}"


def query(prometheus, expression):
    """Returns the samples of an expression. Raises ValueError if Prometheus refuses it."""
    try:
        parameters = urllib.parse.urlencode({"query": expression})
        return json.loads(get(f"{prometheus}/api/v1/query?{parameters}"))["data"]["result"]
    except urllib.error.HTTPError as error:
        raise ValueError(error.read().decode()) from error


def wait_for(condition, what):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"waited {WAIT_S} s for {what}")


def expressions():
    dashboard = json.loads((ROOT / "docs/operate/grafana.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "60s").replace("$model", ".*")
            yield panel["title"], expression.replace("$instance", ".*")


def samples(text):
    """Returns the samples of /metrics: {(name, labels): value}."""
    found = {}
    for name, labels, value in re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
        found[name, tuple(sorted((key, label) for key, label in pairs if key != "model_name"))] = float(value)
    return found


def compare(seen, before, after, prometheus):
    """Returns a fault for each metric whose growth, in /metrics or in Prometheus, differs from the clients' sums."""
    faults = []
    for (metric, labels), expected in sorted(seen.sums.items()):
        key = (f"smartkv:{metric}", labels)
        grown = after.get(key, float("nan")) - before.get(key, 0)
        # Sums of times are reported in milliseconds with few digits.
        close = abs(grown - expected) <= (0.02 * expected + 0.01 if "seconds_sum" in metric else 1e-6 * abs(expected) + 1e-9)
        if ("e2e" in metric or "queue_time" in metric) and metric.endswith("_sum"):
            close = grown >= expected - 0.01  # the sum includes the time of streams
        if not close:
            faults.append(f"{metric}{dict(labels)}: clients saw {expected:g}, the server counted {grown:g}")
        selector = ",".join(f'{name}="{value}"' for name, value in labels)
        scraped = query(prometheus, f"sum(smartkv:{metric}{{{selector}}})")
        if not scraped or abs(float(scraped[0]["value"][1]) - after.get(key, 0)) > 1e-6 * abs(after.get(key, 0)) + 1e-9:
            faults.append(f"{metric}{dict(labels)}: Prometheus has {scraped and scraped[0]['value'][1]}, /metrics says {after.get(key)}")
    total = after["smartkv:e2e_request_latency_seconds_sum", ()] - before["smartkv:e2e_request_latency_seconds_sum", ()]
    if not 0 < total <= sum(seen.seconds):
        faults.append(f"e2e_request_latency_seconds_sum: clients waited {sum(seen.seconds):g} s, the server counted {total:g} s")
    held, kept, budget = (after[f"smartkv:{name}", ()] for name in ("kv_bytes_used", "prefix_cache_bytes", "kv_bytes_budget"))
    if held + kept > budget:
        faults.append(f"held {held:g} + kept {kept:g} bytes are more than the budget {budget:g}")
    # Requests are sent one at a time, so none waits.
    median = query(prometheus, "histogram_quantile(0.5, sum by (le) (smartkv:request_queue_time_seconds_bucket))")
    if float(median[0]["value"][1]) > 0.05:
        faults.append(f"the median time in the queue is {median[0]['value'][1]} s, though nobody waited")
    return faults


def check(url, prometheus):
    faults = []
    series = set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)", get(url + "/metrics"), re.MULTILINE))
    alerts = json.loads(get(prometheus + "/api/v1/rules"))["data"]["groups"][0]["rules"]
    for title, expression in expressions():
        if not query(prometheus, expression):
            faults.append(f"panel {title}: no data for {expression}")
    for line in re.findall(r"^# HELP \S+ ?(.*)$", get(url + "/metrics"), re.MULTILINE):
        if len(line) < 20 or "See docs" in line:
            faults.append(f"a HELP text says too little: {line!r}")
    for alert in alerts:
        if alert["health"] != "ok":
            faults.append(f"alert {alert['name']}: {alert['health']}, {alert.get('lastError')}")
        if alert["state"] == "firing":
            faults.append(f"alert {alert['name']} fires on a healthy server")
    used = [expression for _, expression in expressions()] + [alert["query"] for alert in alerts]
    for name in sorted(set(re.findall(r"\b(?:smartkv:|process_)[a-z0-9_]+", " ".join(used))) - series):
        faults.append(f"{name}: the server gives no such metric")
    print(f"{len(list(expressions()))} expressions of the dashboard, {len(alerts)} alerts, {len(faults)} faults")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder:
        process, prometheus = start_prometheus(pathlib.Path(folder), url)
        try:
            wait_for(lambda: query(prometheus, 'up{job="smartkv"} == 1'), "the first scrape")
            before, seen = samples(get(url + "/metrics")), Seen()
            load(url, seen)
            finished = 'increase(smartkv:request_success_total[60s])'
            wait_for(lambda: query(prometheus, finished), "the counters of finished requests")
            wait_for(lambda: all(rule["health"] == "ok" for rule in json.loads(
                get(prometheus + "/api/v1/rules"))["data"]["groups"][0]["rules"]), "the alerts' first evaluation")
            time.sleep(3 * SCRAPE_S)
            faults = check(url, prometheus) + compare(seen, before, samples(get(url + "/metrics")), prometheus)
        finally:
            process.terminate()
            process.wait()
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
