#!/usr/bin/env python3
"""Checks deploy/ray on a local Ray cluster of two nodes, which it starts and ends. Needs deploy/ray/requirements.txt
and openai.

    scripts/check_ray.py --smartkv build/release/smartkv --model MODEL [--tokens 64] [--repetitions 5]

  - Ray accepts serve.yaml, and the application accepts its arguments. With this machine's program, model and sizes,
    `serve deploy` starts it on a running cluster, and it answers.
  - Load on one replica starts a second one, on the other node.
  - A second prompt of a session has a prefix hit (cached_tokens > 0) on the same replica. Sessions are spread over both
    replicas.
  - Streams arrive as they are generated, with the same text as whole answers. Errors and Retry-After are forwarded.
  - A replica is killed (SIGKILL) under load. Every request still gets the answer that it got alone, through the retries
    of OpenAI's client; a stream that was cut is requested again. The replica is replaced, and its server is gone.

Prints the time of a token through Ray beside that of the server alone, and tokens per second of one and of two
replicas, each with one thread. The exit code is 1 if a check fails.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
APPLICATION = ROOT / "deploy/ray"
os.environ["PYTHONPATH"] = str(APPLICATION)  # for the processes of the cluster
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "120"  # a busy machine takes longer than Ray's 5 s to start a process
sys.path.insert(0, str(APPLICATION))

import openai
import ray
import smartkv_app
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.schema import ServeDeploySchema
from servers import free_port, smartkv_server

NAME = "smartkv"
CLIENTS = 8
PATIENCE_S = 300
TEXT = (ROOT / "assets/evaluation/prose.txt").read_text(encoding="utf-8")


def check(held, what):
    print(f"{'held' if held else 'MISSED'}: {what}", flush=True)
    if not held:
        check.missed += 1


check.missed = 0


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited {PATIENCE_S} s for {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def cluster():
    """Runs two nodes of one core each, with one proxy. Yields the URL of the proxy."""
    # Loopback addresses other than 127.0.0.1, which Ray would replace by the address that other machines see.
    head, second = "127.0.0.2", "127.0.0.3"
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": head, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1, node_ip_address=second)
        ray.init(address=nodes.address, _node_ip_address=head, log_to_driver=False)
        port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
    finally:
        ray.shutdown()
        nodes.shutdown()


def deploy(args, **changes):
    arguments = {"program": str(pathlib.Path(args.smartkv).resolve()), "model": str(pathlib.Path(args.model).resolve()), "cpus": 1,
                 "max_sequences": CLIENTS, "options": ["--log-level", "warning"], **changes}
    serve.run(smartkv_app.build(smartkv_app.Arguments(**arguments)), name=NAME)


def replicas():
    return serve.status().applications[NAME].deployments["SmartKV"].replica_states.get("RUNNING", 0)


def status_of(pid):
    """Returns the fields of /proc/PID/stat after the command's name. [1] is the parent; [11] and [12] are CPU ticks."""
    return [int(field) if field.lstrip("-").isdigit() else field
            for field in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()]


def adopt_orphans():
    """Makes this process adopt descendants whose parent ends, so that everything it starts stays its descendant."""
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def descendants(root=None):
    """Returns {pid: parent} of all descendants of this process (or of `root`). Only these may be counted or ended."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = status_of(folder.name)[1]
    found, edge = {}, {root or os.getpid()}
    while edge:
        children = {pid: parent for pid, parent in parents.items() if parent in edge and pid not in found}
        found |= children
        edge = set(children)
    return found


def end_descendants():
    """Ends and reaps the processes that a part of the check has left behind."""
    deadline = time.monotonic() + 30
    signal_now = signal.SIGTERM
    while left := descendants():
        if time.monotonic() > deadline:
            signal_now, deadline = signal.SIGKILL, deadline + 30
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal_now)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.5)


def processes(mark):
    """Returns (pid, parent) of the processes that this check started and whose command line contains the mark."""
    found = []
    for pid, parent in descendants().items():
        with contextlib.suppress(OSError):
            if mark in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                found.append((pid, parent))
    return found


def servers(args):
    """Returns the servers of the replicas that this check started, each with its parent: a child of a node's raylet."""
    return processes(str(pathlib.Path(args.smartkv).resolve()) + "\0serve")


def cpu_seconds(pids):
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(status_of(pid)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


class Client:
    def __init__(self, url):
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=8, timeout=PATIENCE_S)
        self.retries = self.cut = 0
        self.lock = threading.Lock()

    def create(self, prompt, tokens, session, **more):
        return self.openai.completions.with_raw_response.create(
            model="SmolLM2-135M-Instruct", prompt=prompt, max_tokens=tokens, temperature=0,
            extra_headers={"x-session-id": session} if session else {}, extra_body={"ignore_eos": True}, **more)

    def whole(self, prompt, tokens, session=None):
        """Returns the answer, and the replica that gave it."""
        response = self.create(prompt, tokens, session)
        with self.lock:
            self.retries += response.retries_taken
        return response.parse(), response.headers.get("x-smartkv-replica")

    def stream(self, prompt, tokens, session=None):
        """Returns the text, and the times at which its pieces arrived."""
        text, times = "", []
        for chunk in self.create(prompt, tokens, session, stream=True).parse():
            text += chunk.choices[0].text
            times.append(time.perf_counter())
        return text, times

    def streamed_text(self, prompt, tokens, session):
        """Returns the text of a stream. A stream that is cut is requested again, and must begin with the same text."""
        while True:
            try:
                return self.stream(prompt, tokens, session)[0]
            except (openai.APIError, OSError) as error:
                if isinstance(error, openai.APIStatusError):
                    raise
            except Exception as error:  # openai does not wrap errors of httpx in the middle of a stream
                if "httpx" not in type(error).__module__ and "httpcore" not in type(error).__module__:
                    raise
            with self.lock:
                self.cut += 1


def in_parallel(work, items):
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(work, items))


def prompt_of(i, characters=600):
    return f"Text {i}. " + TEXT[i * characters:(i + 1) * characters]


def check_config():
    config = ServeDeploySchema.model_validate(yaml.safe_load((APPLICATION / "serve.yaml").read_text(encoding="utf-8")))
    for application in config.applications:
        smartkv_app.build(smartkv_app.Arguments(**application.args))
    check(True, "serve.yaml is a configuration that Ray and the application take")


def answers_at(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def check_deploy(args):
    """Runs `serve deploy` with serve.yaml on a separate cluster, which Ray's own commands start and end."""
    config = yaml.safe_load((APPLICATION / "serve.yaml").read_text(encoding="utf-8"))
    config["http_options"] = {"host": "127.0.0.1", "port": free_port()}
    config["applications"][0]["args"] |= {
        "program": str(pathlib.Path(args.smartkv).resolve()), "model": str(pathlib.Path(args.model).resolve()), "cpus": 1,
        "options": ["--preset", "server", "--kv-cache-bytes", "256MB"], "min_replicas": 1, "max_replicas": 1}
    commands, dashboard = pathlib.Path(sys.executable).parent, free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        try:
            # `ray stop` cannot be used at the end, because it ends every cluster of the machine.
            started = subprocess.Popen([commands / "ray", "start", "--head", "--block", "--num-cpus", "2", "--port", str(free_port()),
                                        "--dashboard-port", str(dashboard)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for(lambda: answers_at(dashboard) or started.poll() is not None, "the dashboard of `ray start`")
            # The dashboard listens before it is able to deploy, so this is retried.
            wait_for(lambda: subprocess.run([commands / "serve", "deploy", "-a", f"http://127.0.0.1:{dashboard}", file.name],
                                            stdout=subprocess.DEVNULL, timeout=PATIENCE_S).returncode == 0, "`serve deploy`")
            client = Client(f"http://127.0.0.1:{config['http_options']['port']}")

            def answers():
                try:
                    return client.whole(prompt_of(0), 4)[0].usage.completion_tokens == 4
                except openai.OpenAIError:
                    return False
            wait_for(answers, "an answer of what `serve deploy` brought up")
        finally:
            end_descendants()
    check(True, "`serve deploy` brings serve.yaml up, and it answers")


def throughput(client, tokens):
    """Returns the tokens per second of CLIENTS clients, each a session with two requests."""
    def work(i):
        return client.whole(prompt_of(i), tokens, f"load {i}")[0].usage.completion_tokens
    in_parallel(work, range(CLIENTS))  # warms up, and computes the prompts
    begin = time.perf_counter()
    done = sum(in_parallel(work, [i % CLIENTS for i in range(2 * CLIENTS)]))
    return done / (time.perf_counter() - begin)


def seconds_per_token(client, tokens, repetitions):
    """Returns the median seconds per token of one stream, after its first token."""
    found = []
    for _ in range(repetitions + 1):
        _, times = client.stream(prompt_of(0), tokens, "one")
        found.append((times[-1] - times[0]) / (tokens - 1))
    return statistics.median(found[1:])


def check_scaling(args, client):
    stopping = threading.Event()

    def work(i):
        while not stopping.is_set():
            client.whole(prompt_of(i), 16, f"scale {i}")

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        loads = [pool.submit(work, i) for i in range(CLIENTS)]
        wait_for(lambda: replicas() == 2, "a second replica")
        stopping.set()
        for load in loads:
            load.result()
    nodes = {status_of(replica)[1] for _, replica in servers(args)}
    check(len(nodes) == 2, "load on one replica started a second one on the other node")


def check_sessions(client):
    seen, same, cached = set(), True, True
    for i in range(20):
        if len(seen) == 2 and i >= 6:
            break
        shared = prompt_of(i, 1200)
        _, first = client.whole(shared, 4, f"session {i}")
        answer, second = client.whole(shared + " And then?", 4, f"session {i}")
        same = same and first == second
        cached = cached and answer.usage.prompt_tokens_details.cached_tokens > 0
        seen.add(first)
    check(same and cached, "a second prompt of a session has a prefix hit on the same replica")
    check(len(seen) == 2, "sessions are spread over both replicas")


def check_streams(client, tokens):
    text, times = client.stream(prompt_of(1), tokens, "stream")
    answer, _ = client.whole(prompt_of(1), tokens, "stream")
    check(text == answer.choices[0].text and len(times) > tokens // 4 and times[-1] > times[0],
          f"a stream comes in pieces ({len(times)} of {tokens} tokens), with the whole answer's text")
    try:
        client.openai.completions.create(model="none", prompt="x")
        check(False, "errors are forwarded")
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", "errors are forwarded")


def check_kill(args, client, references, tokens):
    """Checks that requests survive the death of a replica while every client has requests running."""
    victim, worker = servers(args)[0]
    n = len(references)
    begun = threading.Semaphore(0)

    def work(i):
        begun.release()
        session = f"kill {i}"
        if i % 2 == 0:
            return client.whole(prompt_of(i % n), tokens, session)[0].choices[0].text
        return client.streamed_text(prompt_of(i % n), tokens, session)

    retries = client.retries
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(work, i) for i in range(3 * CLIENTS)]
        for _ in range(CLIENTS + 1):  # now at least one request has ended, and the others run
            begun.acquire()
        os.kill(worker, signal.SIGKILL)
        wrong = failed = 0
        for i, answer in enumerate(answers):
            try:
                wrong += answer.result() != references[i % n]
            except Exception as error:
                print(f"  request {i}: {error!r}")
                failed += 1
    check(wrong == failed == 0 and client.retries - retries + client.cut > 0,
          f"of {3 * CLIENTS} requests {failed} failed and {wrong} had another answer; OpenAI's client retried "
          f"{client.retries - retries} times, {client.cut} streams were cut and asked for again")
    wait_for(lambda: len({pid for pid, _ in servers(args)} - {victim}) == 2 and replicas() == 2, "a new replica")
    check(victim not in [pid for pid, _ in servers(args)], "the replica was replaced, and its server is gone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    adopt_orphans()
    check_config()
    check_deploy(args)

    one_thread = ["--threads", "1", "--max-sequences", str(CLIENTS)]
    with smartkv_server(args.smartkv, args.model, *one_thread) as url:
        client = Client(url)
        references = [client.whole(prompt_of(i), args.tokens)[0].choices[0].text for i in range(CLIENTS)]
        alone_s = seconds_per_token(client, args.tokens, args.repetitions)
        alone_rate = throughput(client, args.tokens)
    with cluster() as url:
        client = Client(url)
        deploy(args)
        ray_pids = [pid for pid, _ in processes("ray::ProxyActor") + processes("ray::ServeReplica")]
        before = cpu_seconds(ray_pids)
        ray_s = seconds_per_token(client, args.tokens, args.repetitions)
        cpu_s = (cpu_seconds(ray_pids) - before) / (args.tokens * (args.repetitions + 1))
        one = throughput(client, args.tokens)
        deploy(args, max_replicas=2, max_sequences=CLIENTS // 2, upscale_delay_s=1)
        check_scaling(args, client)
        check_sessions(client)
        check_streams(client, args.tokens)
        two = throughput(client, args.tokens)
        check_kill(args, client, references, args.tokens)

    print(f"\none stream, milliseconds per token: {1000 * alone_s:.2f} alone, {1000 * ray_s:.2f} through Ray; Ray's proxy and "
          f"replica take {1000 * cpu_s:.2f} ms of a core for each token")
    print(f"{CLIENTS} clients, tokens per second, each replica with one thread: {alone_rate:.0f} alone, {one:.0f} with one replica, "
          f"{two:.0f} with two; {len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f}")
    sys.exit(1 if check.missed else 0)


if __name__ == "__main__":
    main()
