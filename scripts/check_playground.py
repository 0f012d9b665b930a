#!/usr/bin/env python3
"""Drives the playground in headless Chromium. scripts/check_playground.sh runs it and provides its requirements: a
server with the prefix cache on, Debian's chromium and nginx, and playwright and axe-playwright-python from PyPI.

    scripts/check_playground.py --smartkv build/release/smartkv --model MODEL [--screenshots docs]

Uses the page like a person, by keyboard. It also fails on problems that a person would overlook:
  - errors in the console
  - anything that the Content-Security-Policy blocks
  - requests to other hosts
  - violations of WCAG 2.1 AA that axe finds, in light and dark mode
  - colours with too little contrast
  - a page wider than a phone
  - a link that leads out of the path below which nginx serves the page
With --screenshots it writes playground.png, playground_dark.png and playground_narrow.png.
"""

import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright
from servers import free_port, smartkv_server

ROOT = pathlib.Path(__file__).resolve().parent.parent
ANSWER_MS = 180_000  # a slow machine may be busy with other work

AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}

# Contrast ratios, by relative luminance (WCAG 2.1), of the page's text colours on its backgrounds.
CONTRAST = """() => {
  const style = getComputedStyle(document.documentElement);
  const luminance = (name) => {
    let hex = style.getPropertyValue(name).trim().slice(1);
    if (hex.length === 3) hex = [...hex].map((c) => c + c).join('');
    const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const pairs = [['--text', '--ground'], ['--text', '--raised'], ['--quiet', '--ground'], ['--quiet', '--raised'],
                 ['--on-accent', '--accent'], ['--text', '--cached'], ['--text', '--differs']];
  return pairs.filter(([a, b]) => ratio(a, b) < 4.5).map(([a, b]) => `${a} on ${b}: ${ratio(a, b).toFixed(2)}`);
}"""


class Watched:
    """A page, and everything that went wrong in it."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.faults = []
        self.page.on("console", self.note_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.note_request(request, url))
        self.page.goto(url)
        expect(self.page.locator("#model")).to_contain_text("tokens")

    def note_console(self, message):
        # Chromium reports answers with these statuses, but the page handles them.
        refusal = "status of 400" in message.text or "status of 503" in message.text
        if message.type in ("error", "warning") and not refusal:
            self.faults.append(f"console: {message.text}")

    def note_request(self, request, url):
        if not request.url.startswith(url):
            self.faults.append(f"a request to {request.url}")

    def ask(self, text):
        self.page.locator("#prompt").press_sequentially(text)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#stop")).to_be_disabled(timeout=ANSWER_MS)

    def part(self, name, panel=0):
        return self.page.locator(".panel").nth(panel).locator(f"[data-is={name}]")

    def choose(self, panel, policy, speculation=""):
        self.part("policy", panel).select_option(policy)
        self.part("speculation", panel).select_option(speculation)


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def check_accessible(watched):
    for scheme in "dark", "light":
        watched.page.emulate_media(color_scheme=scheme)
        found = Axe().run(watched.page, options=AXE).response["violations"]
        check(found == [], f"axe, {scheme}: " + "; ".join(
            f"{one['id']} at {node['html'][:120]}" for one in found for node in one["nodes"]))
        check(watched.page.evaluate(CONTRAST) == [], f"contrast, {scheme}: {watched.page.evaluate(CONTRAST)}")


def check_chat(watched):
    page = watched.page
    page.locator("#max-tokens").evaluate("e => e.value = 48")
    page.locator("#prompt").focus()
    watched.ask("What is the capital of France? Answer in one sentence.")
    check(len(page.locator(".message.assistant > span").inner_text()) > 10, "no answer")
    expect(watched.part("bytes")).to_contain_text("of the full cache")
    expect(watched.part("speed")).to_contain_text("tokens/s")
    expect(watched.part("tiers")).to_contain_text("exact")  # even if the answer is short
    check(page.evaluate("document.activeElement.id") == "prompt", "the focus did not come back to the prompt")


def check_tiers(watched):
    """Checks each kind of tier: in the text, in the picture, and at the tokens of the prompt."""
    page = watched.page
    page.locator("#max-tokens").evaluate("e => e.value = 96")
    text = (ROOT / "tests/fixtures/text/held_out.txt").read_text(encoding="utf-8")
    for policy, parameters, tier in (("balanced", "", "4-bit"), ("compact", "", "3-bit"),
                                     ("streaming", '{"tokens": 256}', "evicted"),
                                     ("block_summary", '{"tokens": 256, "window": 64}', "summarised")):
        watched.choose(0, policy)
        watched.part("parameters").fill(parameters)
        page.locator("#clear").press("Enter")
        page.locator("#prompt").fill(text[:2000] + "\n\nGo on.")
        page.locator("#prompt").focus()
        watched.ask("")
        expect(watched.part("tiers")).to_contain_text(tier)
        check(tier in watched.part("tiers-map").get_attribute("aria-label"), f"the picture of {policy} does not say {tier}")
        kind = ".tier-" + tier.replace("-", "_")
        check(watched.part("tiers-map").locator(kind).count() > 0, f"{policy}: no {tier} token is drawn")
        check(watched.part("seen-text").locator(kind).count() > 0, f"{policy}: no token of the prompt is {tier}")
    watched.part("parameters").fill("")
    watched.choose(0, "")
    page.locator("#clear").press("Enter")
    page.locator("#max-tokens").evaluate("e => e.value = 48")


def check_cached_prompt(watched):
    watched.ask("And of Italy?")
    cached = int(watched.part("prompt").inner_text().split()[0].replace(",", ""))
    check(cached > 0, "the second turn had no prefix hit")
    watched.part("seen").locator("summary").press("Enter")
    expect(watched.part("seen-text").locator("mark").filter(has_text="capital of France")).to_be_visible()


def check_drafts(watched):
    watched.choose(0, "full", "ngram")
    watched.page.locator("#clear").press("Enter")
    line = "one two three four five six seven eight nine ten "
    watched.ask(f"Repeat this text exactly, again and again: {line * 3}")
    accepted, rejected = (int(n) for n in re.search(r"(\d+) accepted, (\d+) rejected",
                                                    watched.part("drafts").inner_text()).groups())
    message = watched.page.locator(".message.assistant")
    check(accepted > 0 and message.locator(".accepted").count() > 0, "no accepted draft is shown")
    check((rejected > 0) == (message.locator(".rejected").count() > 0),
          f"the page does not match the {rejected} rejected drafts")
    watched.page.locator("#settings summary").press("Enter")
    watched.page.locator("#rejected").press("Space")
    check(not any(one.is_visible() for one in message.locator(".rejected").all()), "rejected drafts cannot be hidden")
    watched.page.locator("#rejected").press("Space")
    watched.page.locator("#settings summary").press("Enter")


def check_retry_and_limit(watched):
    """Checks that a failed question is in the box again, that Retry asks it, and that a cut answer says so."""
    page = watched.page
    page.locator("#clear").press("Enter")
    page.locator("#max-tokens").evaluate("e => e.value = 8")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(
        status=503, content_type="application/json", body='{"error": {"message": "The server is busy."}}'))
    page.locator("#prompt").focus()
    watched.ask("Tell a very long story.")
    expect(page.locator(".message.error")).to_contain_text("busy")
    check(page.locator("#prompt").input_value() == "Tell a very long story.", "the question that failed is not in the box")
    page.unroute("**/v1/chat/completions")
    page.locator("#retry").press("Enter")
    expect(page.locator(".message.assistant .note")).to_contain_text("Cut at 8 tokens", timeout=ANSWER_MS)
    expect(page.locator("#retry")).to_be_hidden()
    check(page.locator("#prompt").input_value() == "", "the question that was answered is still in the box")
    check(page.locator(".message.user").count() == 1 and page.locator(".message.error").count() == 0, "the failure is still there")
    page.locator("#max-tokens").evaluate("e => e.value = 48")


# Milliseconds to render and lay out a token, in answers of 1,000 and of 30,000 tokens. Each is the smallest mean over
# 200 tokens.
DRAWING = """async () => {
  const {Answer} = await import('/playground/answer.js');
  const log = document.querySelector('.log');
  const body = document.createElement('span');
  log.append(body);
  const answer = new Answer(body);
  let n = 0;
  const least = (until) => {
    let best = Infinity;
    while (n < until) {
      const start = performance.now();
      for (let i = 0; i < 200; ++i) {
        answer.add([{origin: 'model', text: ++n % 40 ? ' word' : '\\n'}]);
        log.scrollTop = log.scrollHeight;
      }
      best = Math.min(best, (performance.now() - start) / 200);
      if (n > until - 1000) continue;
      best = Infinity;
    }
    return best;
  };
  const result = [least(1000), least(30000)];
  body.remove();
  return result;
}"""


def check_drawing(watched):
    short, long = watched.page.evaluate(DRAWING)
    print(f"a token is drawn in {1000 * short:.0f} us at first and in {1000 * long:.0f} us after 30,000", flush=True)
    check(long < 5 * short, "drawing a token takes longer the longer the answer is")


def check_composer(browser, url):
    """Checks that the box and its buttons are visible without scrolling, before and after an answer."""
    for width, height in ((390, 844), (360, 640), (1280, 720)):
        watched = Watched(browser, url, viewport={"width": width, "height": height})
        for answered in False, True:
            if answered:
                watched.page.locator("#prompt").focus()
                watched.ask("Count to ten.")
                watched.page.evaluate("scrollTo(0, 0)")
            for part in "#prompt", "#send", "#stop":
                box = watched.page.locator(part).bounding_box()
                check(box["y"] >= 0 and box["y"] + box["height"] <= height, f"{part} is out of sight at {width} x {height}")
        check(watched.faults == [], "; ".join(watched.faults))
        watched.context.close()


def check_stop_and_errors(watched):
    page = watched.page
    page.locator("#clear").press("Enter")
    page.locator("#max-tokens").evaluate("e => e.value = 2000")
    page.locator("#prompt").press_sequentially("Tell a very long story.")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant > span").first).not_to_be_empty(timeout=ANSWER_MS)
    page.keyboard.press("Escape")
    expect(page.locator(".message.error")).to_contain_text("stopped")
    expect(page.locator("#stop")).to_be_disabled()
    page.locator("#max-tokens").evaluate("e => e.value = 48")
    for parameters, error in (('{"bits"', "JSON"), ('{"bites": 4}', "bites")):
        watched.choose(0, "balanced")
        watched.part("parameters").fill(parameters)
        page.locator("#prompt").focus()
        watched.ask("Hello")
        expect(page.locator(".message.error").last).to_contain_text(error)
    watched.part("parameters").fill("")


def check_comparison(watched):
    page = watched.page
    page.locator("#clear").press("Enter")
    page.locator("#compare").press("Enter")
    watched.choose(0, "balanced", "ngram")
    watched.choose(1, "gated_eviction", "off")
    watched.part("parameters", 1).fill('{"tokens": 256}')
    watched.part("seen").locator("summary").press("Enter")  # closes it again
    page.locator("#max-tokens").evaluate("e => e.value = 96")
    text = (ROOT / "tests/fixtures/text/held_out.txt").read_text(encoding="utf-8")
    page.locator("#prompt").fill(text[:2000] + "\n\nRepeat the first three sentences of this text.")
    page.locator("#prompt").focus()
    watched.ask("")
    check(page.locator(".message.assistant").count() == 2, "two policies, but not two answers")
    expect(page.locator("#status")).to_contain_text("same")


@contextlib.contextmanager
def below_a_path(url):
    """Serves the server below a path with nginx, as docs/operate/install.md describes, and yields the URL of that path."""
    port = free_port()
    page = (ROOT / "docs/operate/install.md").read_text(encoding="utf-8")
    location = re.search(r"^location /llm/ {.*?^}", page, re.M | re.S)[0].replace("http://127.0.0.1:8080", url)
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "nginx.conf"
        config.write_text(f"daemon off; pid {folder}/pid; error_log stderr error; events {{}}\n"
                          f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
                          f"server {{ listen 127.0.0.1:{port}; {location} }} }}\n", encoding="utf-8")
        nginx = subprocess.Popen(["/usr/sbin/nginx", "-c", config])
        try:
            yield f"http://127.0.0.1:{port}/llm/"
        finally:
            nginx.terminate()
            nginx.wait()


def check_below_a_path(browser, url):
    with below_a_path(url) as below:
        watched = Watched(browser, below, viewport={"width": 1180, "height": 900})
        check_chat(watched)
        for link in watched.page.locator("a[href]").evaluate_all("links => links.map((link) => link.href)"):
            if link.startswith(below.removesuffix("llm/")):
                with urllib.request.urlopen(link, timeout=30) as answer:
                    check(link.startswith(below) and answer.status == 200, f"the link {link}")
        watched.context.close()
        return watched.faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()

    def shoot(watched, name):
        if arguments.screenshots is not None:
            watched.page.screenshot(path=arguments.screenshots / name, full_page=True)

    # The cache is small enough for its use to be visible in the picture.
    with smartkv_server(arguments.smartkv, arguments.model, "--kv-cache-bytes", "512MiB") as url, \
            sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        wide = Watched(browser, url, viewport={"width": 1180, "height": 900})
        for step in (check_chat, check_cached_prompt, check_drafts, check_tiers, check_accessible, check_retry_and_limit,
                     check_drawing, check_stop_and_errors, check_comparison, check_accessible):
            step(wide)
            print(f"{step.__name__}: passed", flush=True)
        shoot(wide, "playground.png")
        wide.page.emulate_media(color_scheme="dark")
        shoot(wide, "playground_dark.png")

        check_composer(browser, url)
        print("check_composer: passed", flush=True)
        phone = Watched(browser, url, viewport={"width": 360, "height": 740})
        check_chat(phone)
        check(phone.page.evaluate("document.scrollingElement.scrollWidth") <= 360, "the page is wider than a phone")
        shoot(phone, "playground_narrow.png")
        print("narrow screen: passed", flush=True)
        faults = wide.faults + phone.faults + check_below_a_path(browser, url)
        print("check_below_a_path: passed", flush=True)
        browser.close()
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
