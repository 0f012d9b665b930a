#!/usr/bin/env python3
"""Checks models by name against a hub on this machine (fake_hub.py): that hub with huggingface_hub, then SmartKV with
that hub, then that each reads what the other fetched.

Without huggingface_hub the checks that need it are skipped; scripts/check_hub.sh installs it.
Usage: scripts/check_hub.py build/release/smartkv
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import fake_hub

try:
    import huggingface_hub
except ImportError:
    huggingface_hub = None

PROGRAM = os.path.abspath(sys.argv.pop(1))
FOLDER = tempfile.mkdtemp(prefix="smartkv-hub-")
SMALL, LARGE = b"{\"a\": 1}\n", os.urandom(3 << 20)


def repositories():
    return {
        "org/quants": fake_hub.Repository({"README.md": SMALL, "m-Q4_K_M.gguf": LARGE, "m-Q8_0.gguf": LARGE + LARGE,
                                           "mmproj-m-F16.gguf": LARGE[:100]}),
        "org/shards": fake_hub.Repository({f"m-q8_0-0000{i}-of-00002.gguf": LARGE[i:] for i in (1, 2)}),
        "org/folder": fake_hub.Repository({"config.json": SMALL, "tokenizer.json": SMALL, "model.safetensors": LARGE,
                                           "pytorch_model.bin": LARGE, "original/params.json": SMALL}),
        "org/gated": fake_hub.Repository({"m.gguf": LARGE}, gated=True),
        "org/private": fake_hub.Repository({"m.gguf": LARGE}, private=True),
        "org/outside": fake_hub.Repository({"../m.gguf": LARGE}),
    }


class Test(unittest.TestCase):
    def setUp(self):
        HUB.repositories = repositories()
        with HUB.lock:
            HUB.requests.clear()
            HUB.faults.clear()
        self.cache = tempfile.mkdtemp(dir=FOLDER)

    def run_program(self, *arguments, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY") and not k.startswith("HF_")}
        environment.update({"HF_ENDPOINT": HUB.endpoint, "HF_HUB_CACHE": self.cache, "SSL_CERT_FILE": HUB.certificate},
                           **variables)
        return subprocess.run([PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=120)

    def pull(self, model, **variables):
        result = self.run_program("pull", model, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def refused(self, model, *parts, **variables):
        result = self.run_program("pull", model, **variables)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def content(self, path):
        with open(path, "rb") as file:
            return file.read()

    def hugging_face(self, repo, **options):
        """Downloads with huggingface_hub, which reads its variables when it is imported."""
        if huggingface_hub is None:
            self.skipTest("huggingface_hub is not installed")
        code = f"import huggingface_hub as h; print(h.snapshot_download({repo!r}, **{options!r}))"
        environment = dict(os.environ, HF_ENDPOINT=HUB.endpoint, HF_HUB_CACHE=self.cache, SSL_CERT_FILE=HUB.certificate,
                           REQUESTS_CA_BUNDLE=HUB.certificate, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def test_the_hub_is_one_to_huggingface_hub(self):
        folder = self.hugging_face("org/folder")
        self.assertEqual(self.content(f"{folder}/model.safetensors"), LARGE)
        self.assertEqual(self.content(f"{folder}/original/params.json"), SMALL)

    def test_huggingface_hub_reads_our_cache(self):
        path = self.pull("org/quants:Q4_K_M")
        self.assertEqual(self.content(path), LARGE)
        folder = self.hugging_face("org/quants", local_files_only=True)
        self.assertEqual(os.path.join(folder, "m-Q4_K_M.gguf"), path)
        info = huggingface_hub.scan_cache_dir(self.cache)
        self.assertFalse(info.warnings)
        self.assertEqual([r.repo_id for r in info.repos], ["org/quants"])

    def test_we_read_the_cache_of_huggingface_hub(self):
        folder = self.hugging_face("org/folder")
        self.assertEqual(self.pull("org/folder", HF_HUB_OFFLINE="1"), folder)
        before = len(HUB.fetched("org/folder"))
        self.assertEqual(self.pull("org/folder"), folder)
        self.assertEqual(len(HUB.fetched("org/folder")), before)
        self.assertIn("org/folder", self.run_program("models").stdout)

    def test_a_folder_has_what_the_program_reads(self):
        folder = self.pull("org/folder")
        self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors", "tokenizer.json"])

    def test_without_a_quantization_the_usual_one_is_taken(self):
        result = self.run_program("pull", "org/quants")
        self.assertTrue(result.stdout.strip().endswith("m-Q4_K_M.gguf"), result.stdout + result.stderr)
        self.assertIn("Q4_K_M of Q4_K_M, Q8_0: the usual one", result.stderr)
        self.refused("org/quants:Q5_K_M", "one of its quantizations (Q4_K_M, Q8_0)")

    def test_shards_come_together(self):
        path = self.pull("org/shards")
        self.assertTrue(path.endswith("m-q8_0-00001-of-00002.gguf"))
        self.assertEqual(self.content(path.replace("00001-of", "00002-of")), LARGE[2:])

    def test_a_file_by_its_path(self):
        self.assertEqual(self.content(self.pull("hf://org/quants/m-Q8_0.gguf")), LARGE + LARGE)

    def test_broken_connections_go_on_where_they_broke(self):
        HUB.faults += [("GET", "/blob/org/quants/m-Q4_K_M", fake_hub.cut_after(1 << 20)), ("GET", "/blob/org/quants/m-Q4_K_M", fake_hub.cut_after(1000))]
        self.assertEqual(self.content(self.pull("org/quants:Q4_K_M")), LARGE)
        ranges = [r[2] for r in HUB.fetched("m-Q4_K_M")]
        self.assertEqual(ranges[0], None)
        self.assertTrue(all(ranges[1:]), ranges)

    def test_an_interrupted_download_is_resumed_by_the_next_one(self):
        with open(os.path.join(self.blobs("org--quants"), hashlib.sha256(LARGE).hexdigest() + ".incomplete"), "wb") as file:
            file.write(LARGE[:1000000])
        self.assertEqual(self.content(self.pull("org/quants:Q4_K_M")), LARGE)
        self.assertEqual([r[2] for r in HUB.fetched("m-Q4_K_M")], ["bytes=1000000-"])

    def blobs(self, name):
        folder = os.path.join(self.cache, f"models--{name}", "blobs")
        os.makedirs(folder, exist_ok=True)
        return folder

    def test_wrong_bytes_are_fetched_again_and_then_refused(self):
        HUB.faults += [("GET", "/blob/org/quants/m-Q4", fake_hub.wrong_bytes)]
        self.assertEqual(self.content(self.pull("org/quants:Q4_K_M")), LARGE)
        HUB.faults += [("GET", "/blob/org/quants/m-Q8", fake_hub.wrong_bytes)] * 2
        self.refused("org/quants:Q8_0", "do not have the hash")
        self.assertFalse([f for f in os.listdir(self.blobs("org--quants")) if f.endswith(".incomplete")])

    def test_busy_hubs_are_asked_again(self):
        HUB.faults += [("GET", "/api/", fake_hub.status(429, Retry_After="0")), ("HEAD", "m-Q4", fake_hub.status(503))]
        self.assertEqual(self.content(self.pull("org/quants:Q4_K_M")), LARGE)
        HUB.faults += [("GET", "/api/", fake_hub.status(429, Retry_After="0"))] * 5
        self.refused("org/quants:Q4_K_M", "limits requests (429)")

    def test_errors_say_what_to_do(self):
        self.refused("org/gated", "org/gated/m.gguf: access is restricted: accept its terms on", "set HF_TOKEN")
        self.refused("org/private", "knows no such public model", "set HF_TOKEN")
        self.refused("org/private", "the token may be wrong", HF_TOKEN="other")
        self.refused("org/quants@other", 'there is no revision "other"')
        self.refused("org/outside", "names a file outside of it")
        self.refused("nonsense", "expected ORG/NAME")
        self.refused("org/quants", "its certificate is not trusted", SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt")
        self.refused("org/quants", "HF_HUB_OFFLINE is set", HF_HUB_OFFLINE="1")

    def test_the_token_goes_to_the_hub_only(self):
        for name in ("org/gated", "org/private"):
            self.assertEqual(self.content(self.pull(name, HF_TOKEN="secret")), LARGE)
        self.assertEqual(HUB.authorized_elsewhere, 0)

    def test_without_a_hub_the_cache_is_used(self):
        path = self.pull("org/quants:Q4_K_M")
        result = self.run_program("pull", "org/quants:Q4_K_M", HF_ENDPOINT="https://localhost:1")
        self.assertEqual(result.stdout.strip(), path)
        self.assertIn("cannot be reached", result.stderr)

    def test_two_processes_fetch_a_file_once(self):
        paths = []
        threads = [threading.Thread(target=lambda: paths.append(self.pull("org/quants:Q8_0"))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(paths)), 1)
        self.assertEqual(len(HUB.fetched("m-Q8_0")), 1)

    def test_a_proxy_is_used_unless_excluded(self):
        proxy = fake_hub.Proxy()
        self.pull("org/quants:Q4_K_M", HTTPS_PROXY=f"http://127.0.0.1:{proxy.port}")
        before = proxy.connections
        self.assertGreater(before, 0)
        self.pull("org/quants:Q8_0", HTTPS_PROXY=f"http://127.0.0.1:{proxy.port}", NO_PROXY="localhost,127.0.0.1")
        self.assertEqual(proxy.connections, before)

    def test_models_are_listed_and_removed(self):
        self.pull("org/quants:Q4_K_M")
        self.pull("org/quants:Q8_0")
        self.assertIn("Q4_K_M, Q8_0", self.run_program("models").stdout)
        self.assertIn("3 MiB freed", self.run_program("rm", "org/quants:Q4_K_M").stdout)
        self.assertIn("6 MiB freed", self.run_program("rm", "org/quants").stdout)
        self.assertIn("No models", self.run_program("models").stdout)
        self.assertEqual(self.run_program("rm", "org/quants").returncode, 1)

    def test_a_full_disk_is_noticed_before(self):
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.cache],
                                               capture_output=True).returncode != 0:
            self.skipTest("a small file system cannot be mounted here")
        try:
            self.refused("org/quants", "has too little room")
            self.assertEqual(HUB.fetched("m-Q4_K_M"), [])
        finally:
            subprocess.run(["umount", self.cache], check=True)


if __name__ == "__main__":
    HUB = fake_hub.Hub(repositories(), FOLDER)
    try:
        unittest.main(verbosity=1, warnings="ignore")
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
