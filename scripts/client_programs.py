"""Runs third-party programs against the server, as their documentation describes. Run by check_clients.py.

Each check takes the server's URL, ending in /v1. Nothing is downloaded: tasks and data are written here.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from servers import DEFAULT_MODEL

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def run(program, *arguments, folder=None):
    """Runs a program of this Python's environment and shows its output."""
    command = [str(pathlib.Path(sys.executable).with_name(program)), *arguments]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **OFFLINE})


QUESTIONS = [("France", ["Paris", "Lyon", "Bonn"], 0), ("Germany", ["Munich", "Berlin", "Vienna"], 1),
             ("Italy", ["Milan", "Naples", "Rome"], 2), ("Japan", ["Tokyo", "Osaka", "Kyoto"], 0)]
# One of each kind of request that lm-eval makes.
TASKS = {
    "capitals": {"output_type": "multiple_choice", "doc_to_text": "The capital of {{country}} is the city of", "doc_to_choice": "{{cities}}",
                 "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}]},
    "capitals_said": {"output_type": "generate_until", "doc_to_text": "The capital of France is Paris. The capital of {{country}} is",
                      "doc_to_target": "{{cities[answer]}}.", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
                      "metric_list": [{"metric": "exact_match"}]},
    "capitals_read": {"output_type": "loglikelihood_rolling", "doc_to_text": "",
                      "doc_to_target": "The capital of {{country}} is the city of {{cities[answer]}}.",
                      "metric_list": [{"metric": "bits_per_byte"}]},
}


PROGRAM = '''def greet(name):
    return "Hello, " + name


def add(a, b):
    return a - b
'''


def check_aider(url):
    """Lets aider correct a file of a git repository, as its user would. The model has to be one that can program."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "sums.py")
        file.write_text(PROGRAM)
        git = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", "-C", folder]
        for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
            subprocess.run(git + arguments, check=True)
        for key, value in (("user.name", "Test"), ("user.email", "test@example.org")):
            subprocess.run(git + ["config", key, value], check=True)
        model = json.loads(urllib.request.urlopen(url + "/models").read())["data"][0]["id"]
        run("aider", "--model", "openai/" + model, "--openai-api-base", url, "--openai-api-key", "none", "--edit-format", "whole",
            "--yes-always", "--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-auto-lint", "--map-tokens", "0",
            "--message", "The function add has a bug: it subtracts. Make it return the sum of a and b.", "sums.py", folder=folder)
        changed = {}
        exec(file.read_text(), changed)
        assert changed["add"](2, 3) == 5 and changed["greet"]("Ada") == "Hello, Ada", file.read_text()
        commits = subprocess.run(git + ["log", "--oneline"], check=True, capture_output=True, text=True).stdout.splitlines()
        assert len(commits) >= 2, commits


def check_lm_eval(url):
    """Runs lm-eval without a local tokenizer: it uses the server's, through /tokenizer_info."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        questions = folder / "questions.jsonl"
        questions.write_text("".join(json.dumps({"country": country, "cities": cities, "answer": answer}) + "\n"
                                     for country, cities, answer in QUESTIONS))
        for task, fields in TASKS.items():  # JSON is valid YAML
            (folder / f"{task}.yaml").write_text(json.dumps({
                "task": task, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(questions)}}, "test_split": "test", **fields}))
        run("lm_eval", "run", "--model", "local-completions", "--model_args", f"model={DEFAULT_MODEL},base_url={url}/completions,num_concurrent=4",
            "--include_path", name, "--tasks", *TASKS, "--output_path", str(folder / "results"))
        results = json.loads(next((folder / "results").rglob("results_*.json")).read_text())["results"]
    assert results["capitals"]["acc,none"] >= 0.5, results  # guessing would score a third
    assert 0 < results["capitals_read"]["bits_per_byte,none"] < 2, results
    assert 0 <= results["capitals_said"]["exact_match,none"] <= 1, results


def check_guidellm(url):
    """Runs guidellm with each of its text formats, streamed. The server must report the requested numbers of tokens."""
    prompts = [{"prompt": f"Tell me about the number {i}.", "output_tokens_count": 8} for i in range(6)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data, report = folder / "prompts.jsonl", folder / "report.json"
        data.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
        for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            run("guidellm", "run", "--backend", f"kind=openai_http,target={url},model={DEFAULT_MODEL},request_format={route}",
                "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={len(prompts)}",
                "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}", "--disable-console-interactive", folder=name)
            benchmark = json.loads(report.read_text())["benchmarks"][0]
            totals = benchmark["metrics"]["request_totals"]
            assert totals["successful"] == len(prompts) and totals["errored"] == 0, (route, totals)
            for request in benchmark["requests"]["successful"]:
                assert request["output_metrics"]["text_tokens"] == 8, (route, request)


def check_schemathesis(url):
    """Sends valid and invalid requests generated from /openapi.json for five minutes. Some valid ones get a 400, for
    reasons that a schema cannot express (a prompt beyond the context, fields that exclude each other). Embeddings are a
    501 by design."""
    with tempfile.TemporaryDirectory() as name:  # schemathesis writes a cache into its working directory
        run("schemathesis", "run", url.removesuffix("/v1") + "/openapi.json", "--phases", "examples,coverage,fuzzing", "--max-examples", "40",
            "--max-time", "300", "--exclude-checks", "positive_data_acceptance", "--exclude-path", "/v1/embeddings", "--generation-deterministic",
            "--request-timeout", "120", "--suppress-health-check", "all", "--continue-on-failure", "--no-color", folder=name)
