#!/usr/bin/env python3
"""Checks the program at a terminal, and with output that cannot be written.

    scripts/check_terminal.py --smartkv build/release/smartkv --model MODEL

It checks
  - `smartkv chat` on a pseudo terminal: long pastes, pastes of several lines, Ctrl-C once and repeatedly, a full
    context
  - that nothing is coloured in a pipe or with NO_COLOR
  - that every command reports output that cannot be written, to a full device or a closed one, and exits with code 1
"""

import argparse
import os
import pathlib
import pty
import select
import subprocess
import sys
import tempfile
import time

ANSWER_S = 120  # a slow machine may be busy with other work


class Terminal:
    """A program whose standard input, output and error are a terminal."""

    def __init__(self, *command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.seen = ""

    def type(self, text):
        data = text.encode()
        while data:  # a terminal accepts a few kilobytes at a time, and echoes them meanwhile
            select.select([], [self.fd], [], ANSWER_S)
            data = data[os.write(self.fd, data[:1024]):]
            self.read(0)

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return
        try:
            self.seen += os.read(self.fd, 65536).decode(errors="replace")
        except OSError:  # the program has ended
            time.sleep(0.05)

    def expect(self, text):
        end = time.monotonic() + ANSWER_S
        while text not in self.seen:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} did not come; the last was {self.seen[-500:]!r}")
            self.read(0.2)
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def prompt(self):
        self.expect("\033[?2004h")

    def ask(self, text):
        self.type(text + "\r")
        self.expect("\033[?2004l")

    def exit_code(self):
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                return os.waitstatus_to_exitcode(status)
            self.read(0.1)
        raise AssertionError("the program did not end")


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def check_chat(smartkv, model):
    chat = Terminal(smartkv, "chat", "--model", model, "--temperature", "0", "--max-tokens", "8", "--context-length", "1024")
    chat.prompt()
    chat.ask("Hello")
    chat.prompt()
    paste = "one\rtwo\rthree"
    chat.ask(f"\033[200~{paste}\033[201~")
    chat.prompt()  # one answer has ended; if the paste were three questions, the next answer would follow now
    before = chat.seen
    chat.read(1)
    check("\033[?2004l" not in before + chat.seen, "a paste of several lines was several questions")
    print("a paste of several lines: passed", flush=True)

    chat.ask("/clear")
    chat.prompt()
    chat.ask("\033[200~" + "a b c d " * 300 + "\r" + "e f g h " * 400 + "\033[201~")  # 5,600 bytes
    chat.expect("but the prompt has")  # the whole paste arrived, which is longer than the context
    chat.prompt()
    chat.ask("/clear")
    chat.prompt()
    print("a paste of 5,600 bytes: passed", flush=True)

    chat.type("\003")
    chat.expect("to quit")
    chat.prompt()
    chat.type("half a question\003")
    chat.expect("to quit")
    chat.prompt()
    chat.ask("Count from one to a hundred.")
    chat.type("\003\003")
    chat.prompt()
    chat.ask("Hi")
    chat.prompt()
    print("Ctrl-C, again and again: passed", flush=True)

    for _ in range(12):
        chat.ask("word " * 100)
        chat.prompt()
    chat.ask("word " * 600)
    chat.expect("Type /clear to start")
    chat.prompt()
    chat.ask("/clear")
    chat.prompt()
    chat.type("\004")
    check(chat.exit_code() == 0, "Ctrl-D did not end the conversation")
    print("a full context, and Ctrl-D: passed", flush=True)


def run(smartkv, arguments, stdout, environment=None):
    return subprocess.run([smartkv, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
                          timeout=ANSWER_S * 3, env={**os.environ, **(environment or {})})


def check_colours(smartkv, model):
    arguments = ["generate", "--model", model, "--speculative", "ngram", "--show-drafts", "--temperature", "0", "--max-tokens", "40",
                 "--prompt", "Repeat: one two three one two three one two three"]
    check("\033" not in run(smartkv, arguments, subprocess.PIPE).stdout, "colours in a pipe")
    os.environ["NO_COLOR"] = "1"
    terminal = Terminal(smartkv, *arguments)
    terminal.exit_code()
    terminal.read(0.5)
    check("\033[3" not in terminal.seen, "colours despite NO_COLOR")
    del os.environ["NO_COLOR"]
    print("colours: passed", flush=True)


def check_output(smartkv, model):
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("It rained for three days, and nine birds came back. " * 60, encoding="utf-8")
        config = pathlib.Path(folder) / "config.json"
        config.write_text("{}", encoding="utf-8")
        commands = [
            ["--help"], ["--version"], ["serve", "--help"],
            ["inspect", model], ["inspect", model, "--json"], ["config", "check", str(config)], ["config", "preset"],
            ["config", "schema"], ["completions", "bash"], ["completions", "fish"], ["completions", "zsh"],
            ["plan", "--model", model, "--context", "512", "--concurrency", "1", "--memory", "2GiB"],
            ["generate", "--model", model, "--prompt", "Hi", "--max-tokens", "2"],
            ["generate", "--model", model, "--prompt", "Hi", "--max-tokens", "2", "--json"],
            ["eval", "divergence", "--model", model, "--text", str(text), "--kv-cache", "streaming", "--context", "256", "--windows", "1"],
            ["serve", "--model", model, "--port", "0"],
        ]
        for command in commands:
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = run(smartkv, command, full)
            check(done.returncode == 1, f"{' '.join(command)} >/dev/full: exit code {done.returncode}: {done.stderr[-300:]}")
            check("standard output cannot be written" in done.stderr, f"{' '.join(command)} >/dev/full: {done.stderr[-300:]}")
            closed = subprocess.run(["bash", "-c", '"$@" >&-', "bash", smartkv, *command], stdin=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True, timeout=ANSWER_S * 3)
            check(closed.returncode == 1, f"{' '.join(command)} >&-: exit code {closed.returncode}: {closed.stderr[-300:]}")
            print(f"{' '.join(command[:2])} to a full and a closed device: passed", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    smartkv = os.path.abspath(arguments.smartkv)
    try:
        check_chat(smartkv, arguments.model)
        check_colours(smartkv, arguments.model)
        check_output(smartkv, arguments.model)
    except AssertionError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
