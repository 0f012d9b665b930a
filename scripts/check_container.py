#!/usr/bin/env python3
"""Builds the images of docker/Dockerfile with Docker and uses them as a user would. scripts/check_container.sh prepares
its environment.

It checks in
  - all images: contents, labels, file permissions
  - the default image and `torch`: every policy preset; a stop while an answer is streamed; the health check over HTTP,
    TLS and another port
  - the default image: every preset of options; the `docker run` lines of docs/operate/install.md and the examples of README.md
    and docs/use/getting_started.md, verbatim; any user of group 0; limits of memory and CPUs; a restart and an upgrade with the volume of computed
    prompts; compose from a clean clone; that a change in documents compiles nothing
  - `runtime`: a model that is mounted under another name
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from servers import DEFAULT_MODEL, StreamError, events, free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASE = "debian:bookworm-slim"
NAME = "smartkv-check"            # images, containers and volumes of this script
MOST_MB = {"runtime": 70, "latest": 175, "torch": 700}  # size limits beyond the base image
HARDENED = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
POLICIES = ["full", "balanced", "compact", "tiny", "bounded", "endless", "gated_eviction"]
# All presets except gpu, which needs a GPU.
PRESETS = ["laptop", "long_context", "low_memory", "server"]
QUESTION = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
            "temperature": 0, "max_tokens": 16}


def step(text):
    print(f"==> {text}", flush=True)


def run(*command, check=True, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if check and done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))}\n{done.stdout[-6000:]}\nended with exit code {done.returncode}")
    return done.stdout


def expect(holds, what):
    if not holds:
        sys.exit(f"error: {what}")


def docker(*arguments, **options):
    return run(CLIENT, *arguments, **options)


def client():
    """Returns a docker program that builds with BuildKit. Releases from 23 on need buildx for it."""
    for path in filter(None, (os.environ.get("DOCKER"), shutil.which("docker"), "/usr/bin/docker")):
        version = re.search(r"version (\d+)", run(path, "--version", check=False))
        if version and (int(version[1]) < 23 or subprocess.run([path, "buildx", "version"], capture_output=True).returncode == 0):
            return path
    sys.exit("found no docker with BuildKit: run apt-get install docker.io, or set DOCKER=PATH")


@contextlib.contextmanager
def engine(folder):
    """Provides a Docker engine: a running one if it answers, or a new one that ends with the block."""
    if subprocess.run([CLIENT, "info"], capture_output=True).returncode == 0:
        yield
        return
    step("Starting an engine")
    data = ROOT / "build/docker"
    data.mkdir(parents=True, exist_ok=True)
    os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    with open(folder / "engine.log", "w") as log:
        process = subprocess.Popen(["dockerd", "--data-root", data, "--exec-root", folder / "run", "--pidfile", folder / "docker.pid",
                                    "--host", os.environ["DOCKER_HOST"]], stdout=log, stderr=log)
    try:
        for _ in range(60):
            if subprocess.run([CLIENT, "info"], capture_output=True).returncode == 0:
                break
            time.sleep(1)
        else:
            sys.exit((folder / "engine.log").read_text()[-4000:] + "\ndockerd does not answer")
        yield
    finally:
        process.terminate()
        process.wait()


def make_base(folder):
    """Makes debian:bookworm-slim with debootstrap and this machine's package sources, if no registry provides it."""
    if subprocess.run([CLIENT, "image", "inspect", BASE], capture_output=True).returncode == 0:
        return
    if subprocess.run([CLIENT, "pull", "-q", BASE], capture_output=True).returncode == 0:
        return
    step(f"Making {BASE}: no registry gives it")
    root = folder / "base"
    run("debootstrap", "--variant=minbase", "bookworm", root)
    (root / "etc/apt/sources.list").unlink()
    for source in pathlib.Path("/etc/apt/sources.list.d").iterdir():
        if "debian" in source.name:
            shutil.copy(source, root / "etc/apt/sources.list.d")
    shutil.copytree("/usr/share/keyrings", root / "usr/share/keyrings", dirs_exist_ok=True)
    shutil.copytree("/etc/apt/apt.conf.d", root / "etc/apt/apt.conf.d", dirs_exist_ok=True)
    # pip in the image uses this machine's certificates, and wheels that this machine has.
    certificates = root / "usr/local/share/network-ca"
    certificates.mkdir(parents=True)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", certificates)
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    if wheels:
        shutil.copytree(wheels, root / wheels.lstrip("/"), dirs_exist_ok=True)
    (root / "etc/pip.conf").write_text(f"[global]\ncert = /usr/local/share/network-ca/ca-certificates.crt\nfind-links = {wheels}\n")
    archive = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    run(CLIENT, "import", "-", BASE, stdin=archive.stdout)
    expect(archive.wait() == 0, "tar failed")


def build(tag, *arguments, context=ROOT):
    """Builds an image and returns the output of the build."""
    return docker("build", "--progress", "plain", "-f", context / "docker/Dockerfile", "-t", f"{NAME}:{tag}", *arguments, context,
                  env={**os.environ, "DOCKER_BUILDKIT": "1"})


def remove_leftovers():
    """Removes what an interrupted run left behind."""
    for container in docker("ps", "-aq", "--filter", f"label={NAME}").split():
        docker("rm", "-f", container)
    for volume in docker("volume", "ls", "-q").split():
        if volume.startswith(f"{NAME}-"):
            docker("volume", "rm", volume)


def long_question(words):
    return {**QUESTION, "messages": [{"role": "user", "content": "one two three " * (words // 3) + QUESTION["messages"][0]["content"]}]}


def post(url, body, key=""):
    fields = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    return urllib.request.urlopen(urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), fields), timeout=600)


class Container:
    """A container, `docker run` with `options` and a command. It is removed at the end of the block."""
    def __init__(self, *options, image="latest", command=(), port=8080):
        if not any(option.startswith("127.0.0.1:") for option in options):
            options = ("-p", f"127.0.0.1:0:{port}", *options)
        tag = image if ":" in image else f"{NAME}:{image}"
        self.id = docker("run", "-d", "--label", NAME, *options, tag, *command).split()[-1]
        self.port = port

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.log()[-4000:], file=sys.stderr)
        docker("rm", "-f", self.id)

    @property
    def url(self):
        return "http://" + docker("port", self.id, str(self.port)).split()[0]

    def log(self):
        return docker("logs", self.id)

    def state(self, field):
        return docker("inspect", "-f", "{{.State." + field + "}}", self.id).strip()

    def healthy(self, *arguments):
        return subprocess.run([CLIENT, "exec", self.id, "smartkv", "health", *arguments], capture_output=True).returncode == 0

    def wait(self, seconds=120):
        for _ in range(seconds * 2):
            if self.healthy():
                return self
            expect(self.state("Running") == "true", f"the container ended with exit code {self.state('ExitCode')}\n{self.log()}")
            time.sleep(0.5)
        sys.exit(f"not healthy after {seconds} s\n{self.log()}")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return response.read().decode()

    def name(self):
        return json.loads(self.get("/v1/models"))["data"][0]["id"]

    def open(self, body):
        return post(self.url, body)

    def ask(self, body=QUESTION, **fields):
        """Returns the answer. The answer to QUESTION must be right."""
        try:
            answer = json.load(self.open({**body, **fields}))
        except urllib.error.HTTPError as error:
            sys.exit(f"{fields}: {error.code}: {error.read().decode()}\n{self.log()}")
        expect(body is not QUESTION or "Paris" in answer["choices"][0]["message"]["content"],
               f"{fields}: expected Paris: {answer['choices']}")
        return answer

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics"), re.M)
        expect(found, f"/metrics has no {name}")
        return float(found[1])

    def stop(self):
        docker("stop", "--time", "120", self.id)
        expect(self.state("ExitCode") == "0", f"SIGTERM ended it with code {self.state('ExitCode')}\n{self.log()}")


def check_contents(tag, base_bytes):
    size = int(docker("image", "inspect", "-f", "{{.Size}}", f"{NAME}:{tag}")) - base_bytes
    print(f"{tag}: {size / 1e6:.0f} MB beyond its base")
    expect(size <= MOST_MB[tag] * 1e6, f"{tag}: expected at most {MOST_MB[tag]} MB")
    found = docker("run", "--rm", "--user", "0", "--entrypoint", "sh", f"{NAME}:{tag}", "-c",
                   "find / -xdev -type f -perm /6000; find /var/lib/apt/lists /var/cache/apt /var/log -type f")
    expect(not found.strip(), f"{tag}: programs with setuid or setgid, or files of the package manager:\n{found}")
    docker("run", "--rm", "--entrypoint", "sh", f"{NAME}:{tag}", "-c",
           "cd /usr/share/smartkv && ls configs/default.json assets/smollm2-135m-instruct/draft.safetensors && "
           "[ -n \"$(ls /usr/share/doc/smartkv)\" ] && for text in /usr/share/doc/smartkv/*; do [ -s $text ] || exit 1; done")
    config = json.loads(docker("image", "inspect", "-f", "{{json .Config}}", f"{NAME}:{tag}"))
    for label in ("title", "description", "version", "revision", "created"):
        expect(config["Labels"].get(f"org.opencontainers.image.{label}"), f"{tag}: no label {label}")
    expect(config["User"] == "10001:0", f"{tag}: user {config['User']}")


def check_policies(tag):
    step(f"{tag}: its own command, read-only and without capabilities; every preset of policies")
    with Container(*HARDENED, image=tag).wait() as server:
        expect(server.healthy("--live"), "it is ready and does not live")
        for policy in POLICIES:
            server.ask(kv_cache=policy)
        expect(server.name() == DEFAULT_MODEL, f"the model is named {server.name()}")
        for _ in range(40):  # HEALTHCHECK runs every 10 s
            if server.state("Health.Status") == "healthy":
                break
            time.sleep(0.5)
        else:
            sys.exit(f"Docker calls it {server.state('Health.Status')}")
        server.stop()


def check_presets():
    for preset in PRESETS:
        step(f"preset {preset}, by an argument and by the environment")
        with Container(command=["serve", "--preset", preset]).wait() as server:
            server.ask()
            server.stop()
        with Container("-e", f"SMARTKV_PRESET={preset}").wait() as server:
            server.ask()


def check_health(folder, tag):
    step(f"{tag}: health over TLS, at another port")
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem")
    (folder / "key.pem").chmod(0o644)
    with Container("-v", f"{folder}:/tls:ro", "-e", "SMARTKV_TLS_CERT=/tls/cert.pem", "-e", "SMARTKV_TLS_KEY=/tls/key.pem",
                   "-e", "SMARTKV_PORT=9443", "-e", "SMARTKV_API_KEY=secret", image=tag, port=9443).wait() as server:
        expect("smartkv" in run("curl", "-sSf", "--cacert", folder / "cert.pem", server.url.replace("http:", "https:") + "/metrics",
                                "-H", "Authorization: Bearer secret"), "no /metrics over TLS")


def fenced(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def check_examples(folder, model):
    step("The examples of README.md and docs/use/getting_started.md")
    shell = next(block for block in fenced("README.md", "sh") if block.startswith("curl"))
    python = next(block for block in fenced("docs/use/getting_started.md", "python") if "openai" in block)
    with Container().wait() as server:
        expect("Paris" in run("bash", "-ec", shell.replace("http://127.0.0.1:8080", server.url)), "curl: expected Paris")
        expect("Paris" in run(sys.executable, "-c", python.replace("http://127.0.0.1:8080", server.url)), "Python: expected Paris")
    (folder / "models").mkdir()
    shutil.copy(model, folder / "models/model.gguf")
    for block in fenced("docs/operate/install.md", "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("docker run") or "NAME" in line:
                continue
            step(f"docs/operate/install.md: {line}")
            words = [word.replace("$PWD", str(folder)) for word in shlex.split(line.partition(" # ")[0])[2:]]
            at = words.index("smartkv")
            options = [word.replace("127.0.0.1:8080:", "127.0.0.1:0:").replace("smartkv-cache:", f"{NAME}-cache:")
                       for word in words[:at] if word != "--rm"]
            if "-p" not in options:  # it is no server, so the command ends
                docker("run", "--rm", *options, f"{NAME}:latest", *words[at + 1:])
                continue
            with Container(*options, command=words[at + 1:]).wait() as server:
                if any("API_KEY" in option for option in options):
                    try:
                        server.open(QUESTION)
                        sys.exit("a request without the key was answered")
                    except urllib.error.HTTPError as error:
                        expect(error.code == 401, f"without the key: {error.code}")
                else:
                    server.ask(model=server.name())
    docker("volume", "rm", f"{NAME}-cache")


def check_runtime(model):
    step("runtime: without a model it ends, and says what is missing")
    failed = run(CLIENT, "run", "--rm", f"{NAME}:runtime", check=False)
    expect("/models/model.gguf" in failed, f"expected the missing file: {failed}")
    step("runtime: a model mounted under another name, by its content")
    with Container("-v", f"{model}:/models/model.gguf:ro", image="runtime").wait() as server:
        expect(server.name() != "model", "the model is named after its file")
        for policy in POLICIES:
            server.ask(model=server.name(), kv_cache=policy)


def check_users(folder):
    step("any user of group 0, with the volume")
    volume = f"{NAME}-users"
    with Container(*HARDENED, "--user", "123456:0", "-v", f"{volume}:/cache", "-e", "SMARTKV_PREFIX_CACHE_DIR=/cache").wait() as server:
        server.ask(long_question(600), max_tokens=16)
        server.stop()
    expect("123456" in docker("run", "--rm", "-v", f"{volume}:/cache", "--entrypoint", "sh", f"{NAME}:latest", "-c",
                              "stat -c %u /cache/*.kv"), "no computed prompt of user 123456 in /cache")
    docker("volume", "rm", volume)
    step("a prefix_cache_dir that cannot be written")
    with Container("-e", "SMARTKV_PREFIX_CACHE_DIR=/usr/share").wait() as server:
        expect("prefix_cache_dir: expected a writable directory" in server.log(), f"no line in the log: {server.log()}")
        server.ask()


def check_limits():
    step("600 MB and half a CPU under 16 requests at once")
    with Container("--memory", "600m", "--memory-swap", "600m", "--cpus", "0.5").wait() as server:
        budget = server.metric("smartkv:kv_bytes_budget")
        expect(0 < budget < 600 << 20, f"a budget of {budget / 2**20:.0f} MiB")
        print(f"KV budget {budget / 2**20:.0f} MiB")
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            def ask(i):
                body = {**long_question(600), "max_tokens": 32, "ignore_eos": True}
                body["messages"][0]["content"] = f"{i} " + body["messages"][0]["content"]
                return json.load(server.open(body))["usage"]["completion_tokens"]
            expect(list(pool.map(ask, range(16))) == [32] * 16, "not every request was answered whole")
        expect(server.state("OOMKilled") == "false" and server.state("Running") == "true", "out of memory")


def check_drain(tag):
    step(f"{tag}: SIGTERM while an answer is streamed")
    with Container(image=tag).wait() as server:
        stream = server.open({**QUESTION, "stream": True, "max_tokens": 400, "ignore_eos": True, "stream_options": {"include_usage": True}})
        chunks = events(stream)
        next(chunks)
        stopping = threading.Thread(target=docker, args=("stop", "--time", "120", server.id))
        stopping.start()
        time.sleep(1)
        expect(not server.healthy(), "it calls itself ready while it drains")
        tokens = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
        expect(tokens and tokens[-1] == 400, f"the answer was cut: {tokens[-1:]} of 400 tokens")
        stopping.join()
        expect(server.state("ExitCode") == "0", "SIGTERM was not the end in good order")


def check_restart_and_upgrade():
    volume = f"{NAME}-restart"
    options = ["-v", f"{volume}:/cache", "-e", "SMARTKV_PREFIX_CACHE_DIR=/cache"]
    step("a restart keeps computed prompts")
    with Container(*options).wait() as server:
        first = server.ask(long_question(600))
        docker("restart", "--time", "120", server.id)
        server.wait()
        second = server.ask(long_question(600))
        expect(second["usage"]["prompt_tokens_details"]["cached_tokens"] > 500, f"not cached: {second['usage']}")
        expect(first["choices"] == second["choices"], "another answer after the restart")
    step("another version on the same volume")
    out = build("next", "--build-arg", "VERSION=0.1.1-check")
    expect(not re.search(r"Building CXX", out), "a new version number compiles")
    with Container(*options, image="next").wait() as server:
        third = server.ask(long_question(600))
        expect(first["choices"] == third["choices"], "another answer after the upgrade")
    docker("volume", "rm", volume)
    docker("image", "rm", f"{NAME}:next")


def check_compose(folder):
    step("compose in a clean clone")
    clone = folder / "clone"
    run("git", "clone", "-q", ROOT, clone)
    if run("git", "-C", ROOT, "status", "--porcelain"):  # includes changes that are not committed
        changes = subprocess.run(["git", "-C", ROOT, "diff", "HEAD", "--binary"], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["git", "-C", clone, "apply", "--allow-empty"], input=changes, check=True)
    port = free_port()
    override = folder / "override.yaml"
    override.write_text(f"services:\n  smartkv:\n    image: {NAME}:compose\n")
    (folder / "bin").mkdir()
    (folder / "bin/docker").symlink_to(CLIENT)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1",
                   "SMARTKV_PORT": str(port)}
    program = [CLIENT, "compose"] if subprocess.run([CLIENT, "compose", "version"], capture_output=True).returncode == 0 else ["docker-compose"]

    def compose(*arguments, **variables):
        return run(*program, "-p", NAME, "-f", clone / "compose.yaml", "-f", override, *arguments, env={**environment, **variables})

    def answer(key):
        for _ in range(240):
            try:
                return json.load(post(f"http://127.0.0.1:{port}", QUESTION, key))["choices"][0]["message"]["content"]
            except (ConnectionError, urllib.error.URLError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                    raise
                time.sleep(0.5)
        sys.exit("compose: no answer in two minutes: " + compose("logs"))

    try:
        compose("up", "-d", SMARTKV_API_KEY="secret")
        expect("Paris" in answer("secret"), "expected Paris")
        expect("smartkv" in compose("ps") and "smartkv" in compose("logs"), "ps and logs without the key")
        with open(clone / "docs/operate/install.md", "a") as page:
            page.write("\nA change.\n")
        expect("Building CXX" not in compose("build"), "a change in documents compiles")
        compose("up", "--build", "-d", SMARTKV_API_KEY="other")
        expect("Paris" in answer("other"), "expected Paris after the upgrade")
    finally:
        compose("down", "--volumes")
    docker("image", "rm", f"{NAME}:compose")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", required=True, help="the default model's file")
    arguments.add_argument("--without-torch", action="store_true", help="leave out the image with LibTorch, which takes the longest to build")
    arguments.add_argument("--built", action="store_true", help="use the images of the previous run")
    options = arguments.parse_args()
    model = pathlib.Path(options.model).resolve()
    with tempfile.TemporaryDirectory() as name, engine(pathlib.Path(name)):
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # users in the containers read it
        remove_leftovers()
        make_base(folder)
        base_bytes = int(docker("image", "inspect", "-f", "{{.Size}}", BASE))
        tags = ["runtime", "latest", *([] if options.without_torch else ["torch"])]
        for tag in [] if options.built else tags:
            step(f"Building {tag}")
            out = build(tag, *([] if tag == "latest" else ["--target", tag]), "--build-arg", "REVISION=check", "--build-arg", "CREATED=check")
            sent = max((float(size) for size in re.findall(r"transferring context: ([\d.]+)MB", out)), default=0)
            tracked = sum((ROOT / name).stat().st_size for name in run("git", "-C", ROOT, "ls-files").splitlines() if (ROOT / name).is_file())
            expect(sent * 1e6 < tracked, f"{sent} MB were sent to the builder: .dockerignore lacks something")
            check_contents(tag, base_bytes)
        for tag in tags[1:]:
            check_policies(tag)
            check_drain(tag)
            check_health(folder, tag)
        check_runtime(model)
        check_presets()
        check_examples(folder, model)
        check_users(folder)
        check_limits()
        check_restart_and_upgrade()
        check_compose(folder)
        left = docker("ps", "-aq", "--filter", f"label={NAME}").split()
        expect(not left, f"containers are left: {left}")
    step("All passed")


CLIENT = client()
if __name__ == "__main__":
    try:
        main()
    except StreamError as error:
        sys.exit(f"a stream failed: {error}")
