#!/usr/bin/env python3
"""Checks docs/grafana.json and deploy/prometheus against a real Prometheus that scrapes a loaded server. Needs a server
that runs, and Debian's prometheus:

    scripts/serve.sh &
    apt-get install prometheus
    scripts/check_metrics.py --url http://127.0.0.1:8080

Starts Prometheus with our alerts in a folder of its own, sends requests that use every counter (policies, speculation,
a repeated prompt, shadow mode), and then asks each expression of the dashboard and of the alerts. The exit code is 1
when an expression is refused, a panel has no data, an alert is not healthy, or a name is not one that the server
gives.
"""

import argparse
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

from servers import free_port

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


def load(url):
    text = (ROOT / "tests/fixtures/text/held_out.txt").read_text(encoding="utf-8")[:2000]
    requests = [
        {"kv_cache": "full"},
        {"kv_cache": "full"},  # finds the first one's prompt
        {"kv_cache": "balanced", "speculative": {"method": "ngram", "adaptive": False}},
        {"kv_cache": {"policy": "k4v4", "shadow": 1}},
    ]
    for fields in requests:
        post(url + "/v1/completions", {"prompt": text + text[:500], "max_tokens": 24, "temperature": 0, **fields})


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
    """The samples of an expression; raises ValueError where Prometheus refuses it."""
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
    dashboard = json.loads((ROOT / "docs/grafana.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "60s").replace("$model", ".*")
            yield panel["title"], expression.replace("$instance", ".*")


def check(url, prometheus):
    faults = []
    series = set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)", get(url + "/metrics"), re.MULTILINE))
    alerts = json.loads(get(prometheus + "/api/v1/rules"))["data"]["groups"][0]["rules"]
    for title, expression in expressions():
        if not query(prometheus, expression):
            faults.append(f"panel {title}: no data for {expression}")
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
            load(url)
            finished = 'increase(smartkv:request_success_total[60s])'
            wait_for(lambda: query(prometheus, finished), "the counters of finished requests")
            wait_for(lambda: all(rule["health"] == "ok" for rule in json.loads(
                get(prometheus + "/api/v1/rules"))["data"]["groups"][0]["rules"]), "the alerts' first evaluation")
            time.sleep(3 * SCRAPE_S)
            faults = check(url, prometheus)
        finally:
            process.terminate()
            process.wait()
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
