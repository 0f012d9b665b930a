#!/usr/bin/env python3
"""Drives the playground in headless Chromium. scripts/check_playground.sh runs it and provides its requirements: a
server with the prefix cache on, Debian's chromium and nginx, and playwright and axe-playwright-python from PyPI.

    scripts/check_playground.py --smartkv build/release/smartkv --model MODEL [--screenshots docs]
    scripts/check_playground.py --url http://127.0.0.1:8080 [--only check_edit,check_stop]

Uses the page like a person, by keyboard, and checks:
  - the message box is visible without scrolling, whatever is unfolded, and the page is no wider than a phone
  - conversations and folded parts survive a reload; the off switch deletes conversations; a full storage is reported
  - stop, retry and edit, by the next request that the server gets
  - Markdown looks the same however the stream cut it; hostile answers stay text and cause no request to another host
  - the time to draw a token does not grow with the answer
  - figures, drafts, tiers and the comparison of two policies
It also fails on problems that a person would overlook:
  - errors in the console
  - anything that the Content-Security-Policy blocks
  - requests to other hosts
  - violations of WCAG 2.1 AA that axe finds, in light and dark mode
  - colours with too little contrast
  - a link that leads out of the path below which nginx serves the page
With --screenshots it writes playground.png, playground_dark.png and playground_narrow.png.
"""

import argparse
import contextlib
import json
import pathlib
import re
import subprocess
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
        self.context.set_default_timeout(ANSWER_MS)
        self.page = self.context.new_page()
        self.faults = []
        self.page.on("console", self.note_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.note_request(request, url))
        self.page.on("dialog", lambda dialog: dialog.accept())
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
        self.wait()

    def wait(self):
        expect(self.page.locator("#stop")).to_be_disabled(timeout=ANSWER_MS)

    def set(self, field, value):
        """Sets a field of the settings, folded or not."""
        self.page.locator(f"#{field}").evaluate("(e, value) => e.type === 'checkbox' ? e.checked = value : e.value = value", value)
        self.page.locator(f"#{field}").dispatch_event("change")

    def restart(self):
        self.page.locator("#clear").press("Enter")
        expect(self.page.locator(".turn")).to_have_count(0)

    def reload(self):
        self.page.reload()
        expect(self.page.locator("#model")).to_contain_text("tokens")

    def stored(self):
        """The conversations in the browser's storage."""
        return self.page.evaluate("""() => Object.keys(localStorage).filter((key) => key.includes(' conversation '))
            .map((key) => JSON.parse(localStorage[key]))""")

    def part(self, name, panel=0):
        return self.page.locator(".panel").nth(panel).locator(f"[data-is={name}]")

    def choose(self, panel, policy, speculation=""):
        self.part("policy", panel).select_option(policy)
        self.part("speculation", panel).select_option(speculation)


class Fake:
    """Answers in the server's place while the block runs; keeps what the page sends."""

    def __init__(self, watched, *answers, piece=5):
        self.page, self.answers, self.piece, self.requests = watched.page, list(answers), piece, []

    def __enter__(self):
        self.page.route("**/v1/chat/completions", self.answer)
        return self

    def __exit__(self, *_):
        self.page.unroute("**/v1/chat/completions")

    def answer(self, route):
        self.requests.append(route.request.post_data_json)
        text = self.answers.pop(0)
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0},
                 "kv_cache": {"bytes": 1, "full_bytes": 1, "tokens": 1, "tokens_kept": 1, "policy": "full",
                              "tiers": {"exact": 1}}}
        chunk = {"id": "fake", "usage": usage}
        events = [{**chunk, "choices": [{"drafts": [{"origin": "model", "text": text[i:i + self.piece]}]}]}
                  for i in range(0, len(text), self.piece)]
        events.append({**chunk, "choices": [{"finish_reason": "stop"}]})
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    def said(self, request=-1):
        """What the page sent as messages: [role and content, ...]."""
        return [f"{one['role']}: {one['content']}" for one in self.requests[request]["messages"]]


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
    watched.set("max-tokens", "48")
    page.locator("#prompt").focus()
    watched.ask("What is the capital of France? Answer in one sentence.")
    check(len(page.locator(".message.assistant .body").inner_text()) > 10, "no answer")
    expect(watched.part("bytes")).to_contain_text("of the full cache")
    expect(watched.part("speed")).to_contain_text("tokens/s")
    expect(watched.part("tiers")).to_contain_text("exact")  # even if the answer is short
    check(page.evaluate("document.activeElement.id") == "prompt", "the focus did not come back to the prompt")


def check_tiers(watched):
    """Checks each kind of tier: in the text, in the picture, and at the tokens of the prompt."""
    page = watched.page
    watched.set("max-tokens", "96")
    text = (ROOT / "assets/evaluation/prose.txt").read_text(encoding="utf-8")
    for policy, parameters, tier in (("balanced", "", "4-bit"), ("compact", "", "3-bit"),
                                     ("streaming", '{"tokens": 256}', "evicted"),
                                     ("block_summary", '{"tokens": 256, "window": 64}', "summarised")):
        watched.choose(0, policy)
        watched.part("parameters").fill(parameters)
        watched.restart()
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
    watched.restart()
    watched.set("max-tokens", "48")


def check_cached_prompt(watched):
    watched.ask("And of Italy?")
    cached = int(watched.part("prompt").inner_text().split()[0].replace(",", ""))
    check(cached > 0, "the second turn had no prefix hit")
    watched.part("seen").locator("summary").press("Enter")
    expect(watched.part("seen-text").locator("mark").filter(has_text="capital of France")).to_be_visible()


def check_drafts(watched):
    watched.choose(0, "full", "ngram")
    watched.restart()
    line = "one two three four five six seven eight nine ten "
    watched.ask(f"Repeat this text exactly, again and again: {line * 3}")
    accepted, rejected = (int(n) for n in re.search(r"(\d+) accepted, (\d+) rejected",
                                                    watched.part("drafts").inner_text()).groups())
    message = watched.page.locator(".message.assistant")
    check(message.locator(".accepted").count() == 0, "a formatted answer shows drafts")
    message.get_by_role("button", name="Plain text").press("Enter")
    check(accepted > 0 and message.locator(".accepted").count() > 0, "no accepted draft is shown")
    check((rejected > 0) == (message.locator(".rejected").count() > 0),
          f"the page does not match the {rejected} rejected drafts")
    watched.page.locator("#settings summary").press("Enter")
    watched.page.locator("#rejected").press("Space")
    check(not any(one.is_visible() for one in message.locator(".rejected").all()), "rejected drafts cannot be hidden")
    watched.page.locator("#rejected").press("Space")
    watched.page.locator("#settings summary").press("Enter")


def check_failure_and_limit(watched):
    """Checks that a failed question is in the box again, that Retry asks it, and that a cut answer says so."""
    page = watched.page
    watched.restart()
    watched.set("max-tokens", "8")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(
        status=503, content_type="application/json", body='{"error": {"message": "The server is busy."}}'))
    page.locator("#prompt").focus()
    watched.ask("Tell a very long story.")
    expect(page.locator(".message.error")).to_contain_text("busy")
    check(page.locator("#prompt").input_value() == "Tell a very long story.", "the question that failed is not in the box")
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Retry").press("Enter")
    expect(page.locator(".message.assistant ~ .note, .message.assistant .note")).to_contain_text("Cut at 8 tokens", timeout=ANSWER_MS)
    check(page.locator("#prompt").input_value() == "", "the question that was answered is still in the box")
    check(page.locator(".message.user").count() == 1 and page.locator(".message.error").count() == 0, "the failure is still there")
    watched.set("max-tokens", "48")


# Milliseconds to render and lay out a token, in answers of 1,000 and of 30,000 tokens. Each is the smallest mean over
# 200 tokens.
DRAWING = """async ([view, kind]) => {
  const {Answer} = await import(new URL('playground/answer.js', location.href));
  const log = document.querySelector('.log');
  const body = document.createElement('div');
  log.append(body);
  const answer = new Answer(body, view);
  const token = {
    prose: (n) => (n % 40 ? ' word' : '\\n'),
    list: (n) => (n % 20 ? ' word' : '\\n- item'),
    code: (n) => (n === 1 ? '```python\\n' : n % 12 ? ' x =' : '\\n'),
    table: (n) => (n === 1 ? '| a | b |\\n|---|---|\\n' : n % 12 ? ' cell |' : '\\n|'),
    marked: (n) => (n % 20 ? ' **bold** `code`' : '\\n\\n## Heading\\n\\n'),
  }[kind];
  let n = 0;
  const least = (until) => {
    let best = Infinity;
    while (n < until) {
      const start = performance.now();
      for (let i = 0; i < 200; ++i) {
        answer.add([{origin: 'model', text: token(++n)}]);
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
    for view, kind in (("plain", "prose"), *(("formatted", kind) for kind in ("prose", "list", "code", "table", "marked"))):
        short, long = watched.page.evaluate(DRAWING, [view, kind])
        print(f"{kind}, {view}: a token is drawn in {1000 * short:.0f} us at first and in {1000 * long:.0f} us after 30,000", flush=True)
        check(long < 5 * short, f"drawing a token takes longer the longer the answer is: {kind}, {view}")


MARKDOWN = """# Title

A paragraph with **bold**, *italic*, ~~struck~~, `code <b>`, a [link](http://example.com/?a=1&amp;b=2 "title"),
a second line &copy; 5 < 6 &amp; 7, and www.example.com.

1. First
2. Second
   - nested
   - [x] done

     ```sh
     echo nested
     ```
3. Third

> A quote
> of two lines

| Left | Right |
|:-----|------:|
| `a`  | 1     |
| b<br>c | 2   |

```python
def f(x):
\treturn "**not bold**"
```

Heading
-------

[ref]: http://example.com/ref

A [reference][ref], and ![a picture](http://example.com/p.png).

---

~~~
tildes
"""

# The same text in pieces of other sizes: [HTML of the page's own making, ...].
PIECES = """async ([text, sizes]) => {
  const {Markdown} = await import(new URL('playground/markdown.js', location.href));
  return sizes.map((size) => {
    const body = document.createElement('div');
    const markdown = new Markdown(body);
    for (let at = 0; at < text.length; at += size) markdown.add(text.slice(at, at + size));
    markdown.finish();
    for (const group of body.querySelectorAll('.blocks, .code-lines')) group.replaceWith(...group.childNodes);
    body.normalize();
    const html = new XMLSerializer().serializeToString(body);
    return {html, text: body.textContent};
  });
}"""


def check_markdown(watched):
    whole, *pieces = watched.page.evaluate(PIECES, [MARKDOWN, [10 ** 6, 1, 2, 3, 7, 50]])
    for one in pieces:
        check(one["html"] == whole["html"], f"pieces give another result:\n{one['html']}\n{whole['html']}")
    html = re.sub(r' xmlns="[^"]*"', "", whole["html"])
    for part in ('<h4 class="level-1">Title</h4>', "<strong>bold</strong>", "<em>italic</em>", "<del>struck</del>",
                 "<code>code &lt;b&gt;</code>", 'href="http://example.com/?a=1&amp;b=2"', "© 5 &lt; 6 &amp; 7", "<blockquote>",
                 '<td class="align-right">1</td>', "b<br />c", "return \"**not bold**\"", '<h5 class="level-2">Heading</h5>', "<hr />",
                 'href="http://example.com/ref"', ">Image: a picture</a>", "tildes", "☑ ", "<li>Third</li>"):
        check(part in html, f"{part} is not in {html}")
    check("<img" not in html, "a picture is loaded")
    # Blocks that are too long to be drawn at once.
    for name, text, kind, count in (("list", "".join(f"{n}. item {n}\n" for n in range(1, 3001)), "<li>", 3000),
                                    ("table", "|a|\n|-|\n" + "".join(f"|{n}|\n" for n in range(3000)), "<td>", 3000),
                                    ("paragraph", "word " * 6000, "word", 6000),
                                    ("quote", "> word\n" * 6000, "word", 6000),
                                    ("code", "```\n" + "word\n" * 6000 + "```\n", "word", 6000)):
        for one in watched.page.evaluate(PIECES, [text, [10 ** 6, 97]]):
            found = re.sub(r' xmlns="[^"]*"', "", one["html"]).count(kind)
            check(found == count, f"a long {name} has {found} instead of {count} parts")
        if name == "list":
            lists = re.findall(r'<ol(?: class="[^"]*")?(?: start="(\d+)")?[^>]*>(.*?)</ol>', one["html"], re.S)
            ends = [int(start or 1) + items.count("<li>") for start, items in lists]
            check(ends[-1] == 3001 and [int(start) for start, _ in lists[1:]] == ends[:-1], f"a long list is numbered anew: {ends}")


HOSTILE = [
    "<script>window.hit = 1</script>", "<img src=x onerror=\"window.hit=1\">", "<svg/onload=window.hit=1>",
    "<iframe src=\"http://evil.example/\"></iframe>", "<style>* { display: none }</style>", "<base href=\"http://evil.example/\">",
    "<p style=\"position:fixed;inset:0;background:red\">over all</p>", "<meta http-equiv=refresh content=\"0;url=http://evil.example\">",
    "<link rel=stylesheet href=http://evil.example/a.css>", "<object data=http://evil.example></object>", "<form action=http://evil.example>",
    "<details open ontoggle=window.hit=1>", "<a href=\"javascript:window.hit=1\">a</a>", "<math><mtext><script>window.hit=1</script>",
    "<!-- <script>window.hit=1</script> -->", "<![CDATA[<script>window.hit=1</script>]]>", "&lt;script&gt;window.hit=1&lt;/script&gt;",
    "[a](javascript:window.hit=1)", "[a](JaVaScRiPt:window.hit=1)", "[a](&#106;avascript:window.hit=1)", "[a](java&Tab;script:window.hit=1)",
    "[a](<java\tscript:window.hit=1>)", "[a](\x01javascript:window.hit=1)", "[a](data:text/html,<script>window.hit=1</script>)",
    "[a](vbscript:window.hit=1)", "[a](file:///etc/passwd)", "[a](blob:http://evil.example/1)", "<javascript:window.hit=1>",
    "[a](//evil.example/x)", "[a](/v1/models)", "[a](http://evil.example\" onclick=\"window.hit=1)", "[a](http://evil.example '\" onclick=window.hit=1')",
    "[a][r]\n\n[r]: javascript:window.hit=1", "![a](http://evil.example/p.png)", "![a](//evil.example/p.png)", "![a](data:image/svg+xml,<svg onload=window.hit=1>)",
    "![a](x\" onerror=\"window.hit=1)", "![<img src=x onerror=window.hit=1>](http://evil.example/p.png)", "[![a](http://evil.example/p.png)](javascript:window.hit=1)",
    "```\"><img/src=x/onerror=window.hit=1>\n<script>window.hit=1</script>\n```", "~~~ <script>\n</code></pre><script>window.hit=1</script>",
    "| <img src=x onerror=window.hit=1> | b |\n|---|---|\n| <script>window.hit=1</script> | [a](javascript:window.hit=1) |",
    "# <img src=x onerror=window.hit=1>", "- <script>window.hit=1</script>\n  - > <svg onload=window.hit=1>", "`<script>window.hit=1</script>",
    "**<b>*a**</b>* _<i>__ ~~[`](~~ ![[[](]]", "<scr<script>ipt>window.hit=1</scr</script>ipt>", "<a\nhref='javascript:window.hit=1'\n>a",
    "[constructor]: http://evil.example\n\n[constructor] [__proto__] [toString][]", "\0\ufeff\u202e<script>window.hit=1</script>", "&#0; &#xd800; &#x110000; &nothing;",
    ">" * 3000, "> " * 3000, "- " * 3000, "[" * 5000, "![" * 2500, "*a " * 2500, "_a**" * 2000, "`" * 5000, "~" * 5000, "<" * 5000, "&#" * 2500, "|" * 5000,
    "(" * 5000, "[a](" * 1500, "\\" * 5000, "1. " * 1500, "a\n" + "    " * 1200, "**" + "a" * 9000, "\n".join(" " * n + "- a" for n in range(0, 400, 2)),
    "http://" * 1000, "a@" * 2500, "[a]: " * 1000, "<a " + "b=c " * 2000, "\n" * 5000, "| a " * 1000 + "\n" + "|-" * 1000 + "\n", "``` \n" * 500,
]

# What is in the answers that must not be: elements, attributes and addresses that this list does not name.
LEFT = """() => {
  const tags = 'A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H4 H5 H6 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL'.split(' ');
  const attributes = 'class href target rel referrerpolicy title start tabindex role aria-label type data-copies'.split(' ');
  const found = [];
  for (const one of document.querySelectorAll('.message .body *')) {
    if (!tags.includes(one.tagName)) found.push(one.tagName);
    for (const {name} of one.attributes) if (!attributes.includes(name)) found.push(`${one.tagName} ${name}`);
    if (one.tagName !== 'A') continue;
    if (!['http:', 'https:', 'mailto:'].includes(one.protocol) || one.host === location.host) found.push(one.href);
    if (one.target !== '_blank' || one.rel !== 'noopener noreferrer') found.push(`${one.href} opens in this tab`);
  }
  if (window.hit !== undefined) found.push('a script ran');
  return found;
}"""


def check_hostile_answers(watched):
    """Nothing of an answer runs, loads, or looks like the page; the page stays usable."""
    page = watched.page
    watched.restart()
    sources = [(text, 3) if len(text) < 500 else (text, 211) for text in HOSTILE]
    for i in range(0, len(sources), 20):
        watched.restart()
        page.locator("#prompt").focus()
        for text, piece in sources[i:i + 20]:
            with Fake(watched, text, piece=piece):
                page.locator("#prompt").fill("<img src=x onerror='window.hit=1'>" if i == 0 else "Next")
                watched.ask("")
            check(page.evaluate(LEFT) == [], f"{text[:80]}: {page.evaluate(LEFT)}")
        check(page.locator("#prompt").is_visible() and page.evaluate("document.scrollingElement.scrollWidth") <= 1280, "the page is out of shape")
        if i == 0:
            expect(page.locator(".assistant").first).to_contain_text("<script>window.hit = 1</script>")
            expect(page.locator("#list .title").first).to_have_text("<img src=x onerror='window.hit=1'>")
            page.locator("#list .title").first.press("Enter")  # drawn once more, from the storage
            check(page.evaluate(LEFT) == [], f"from the storage: {page.evaluate(LEFT)}")
    watched.restart()


def in_sight(watched, width, height):
    for part in "#prompt", "#send":
        box = watched.page.locator(part).bounding_box()
        check(box is not None and box["y"] >= 0 and box["y"] + box["height"] <= height and box["x"] >= 0 and box["x"] + box["width"] <= width,
              f"{part} is out of sight at {width} x {height}")
    centre = watched.page.evaluate("""() => {
      const box = document.querySelector('#prompt').getBoundingClientRect();
      return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)?.id;
    }""")
    check(centre == "prompt", f"{centre} lies over the box at {width} x {height}")
    check(watched.page.evaluate("document.scrollingElement.scrollWidth") <= width, f"the page is wider than {width}")
    check(watched.page.evaluate("document.scrollingElement.scrollHeight") <= height, f"the page is higher than {height}")


def check_composer(browser, url):
    """Checks that the box is visible without scrolling: at first, after long answers, and with each part unfolded."""
    for width, height in ((1280, 720), (390, 844), (320, 568)):
        watched = Watched(browser, url, viewport={"width": width, "height": height})
        in_sight(watched, width, height)
        with Fake(watched, MARKDOWN * 3, MARKDOWN + "word" * 300, piece=200):
            watched.page.locator("#prompt").focus()
            watched.ask("First")
            watched.ask("x" * 200)
        in_sight(watched, width, height)
        for name in "conversations", "instruments":
            fold = watched.page.locator(f"#fold-{name}")
            if fold.get_attribute("aria-expanded") == "false":
                fold.press("Enter")
            expect(watched.page.locator(f"#{name}")).to_be_visible()
            in_sight(watched, width, height)
        watched.page.locator("#compare").press("Enter")
        in_sight(watched, width, height)
        check(watched.faults == [], "; ".join(watched.faults))
        watched.context.close()


def check_folds(browser, url):
    """Checks that folded and unfolded parts stay so across a reload."""
    for width, height in ((1280, 720), (390, 844)):
        watched = Watched(browser, url, viewport={"width": width, "height": height})
        for name in "instruments", "conversations":
            before = watched.page.locator(f"#{name}").is_visible()
            check(before == (width == 1280), f"{name} at first")
            for expected in not before, before:
                watched.page.locator(f"#fold-{name}").press("Enter")
                watched.reload()
                check(watched.page.locator(f"#{name}").is_visible() == expected, f"{name}: not as it was before the reload")
                check((watched.page.locator(f"#fold-{name}").get_attribute("aria-expanded") == "true") == expected, f"{name}: aria-expanded")
        check(watched.faults == [], "; ".join(watched.faults))
        watched.context.close()


def check_conversations(watched):
    """Several of them survive a reload, with their titles; each can go on, and be deleted."""
    page = watched.page
    page.locator("#delete-all").press("Enter")
    expect(page.locator("#list li")).to_have_count(0)
    titles = page.locator("#list .title")
    with Fake(watched, "One **bold** answer", "Answer two", "Answer three") as fake:
        page.locator("#prompt").focus()
        watched.ask("First question")
        page.locator("#new").press("Enter")
        watched.ask("Second question")
        watched.reload()
        expect(titles).to_have_text(["Second question", "First question"])
        expect(page.locator(".assistant .body")).to_have_text("Answer two")
        titles.nth(1).press("Enter")
        expect(page.locator(".assistant strong")).to_have_text("bold")
        page.locator("#prompt").focus()
        watched.ask("Third question")
        check(fake.said() == ["user: First question", "assistant: One **bold** answer", "user: Third question"], f"sent {fake.said()}")
    page.get_by_role("button", name="Delete the conversation: Second question").press("Enter")
    expect(titles).to_have_text(["First question"])
    check([one["title"] for one in watched.stored()] == ["First question"], "the deleted conversation is still stored")
    watched.reload()
    expect(page.locator(".user")).to_have_count(2)
    page.locator("#delete-all").press("Enter")
    expect(page.locator(".turn")).to_have_count(0)
    check(watched.stored() == [], "delete all left conversations")


def check_off_switch(watched):
    page = watched.page
    page.locator("#key").evaluate("e => e.value = 'the secret key'")
    page.locator("#key").dispatch_event("change")
    watched.set("system", "a system message")
    with Fake(watched, "One", "Two", "Three"):
        page.locator("#prompt").focus()
        watched.ask("A private question")
        kept = page.evaluate("JSON.stringify(localStorage)")
        check("private" in kept and "system message" in kept and "secret key" not in kept, f"kept: {kept}")
        page.locator("#keep").press("Space")
        for _ in range(2):
            kept = page.evaluate("JSON.stringify(localStorage)")
            check("private" not in kept and "system message" not in kept and "One" not in kept, f"kept although switched off: {kept}")
            expect(page.locator(".turn")).to_have_count(1)  # the conversation goes on
            page.locator("#prompt").focus()
            watched.ask("Another private question")
            break
        check(watched.stored() == [], "stored although switched off")
        watched.reload()
        expect(page.locator("#keep")).not_to_be_checked()
        expect(page.locator(".turn")).to_have_count(0)
        page.locator("#keep").press("Space")
        page.locator("#prompt").focus()
        watched.ask("A third question")
        check(len(watched.stored()) == 1, "not stored although switched on")
    watched.set("system", "")


def check_quota(watched):
    """A full storage is said, and the conversation goes on."""
    page = watched.page
    watched.restart()
    page.evaluate("""() => {
      for (let size = 1 << 20; size > 0; size >>= 1) {
        try { for (let n = 0; n < 10; ++n) localStorage[`filler ${size} ${n}`] = 'x'.repeat(size); } catch {}
      }
    }""")
    with Fake(watched, "One " * 100, "Two"):
        page.locator("#prompt").focus()
        watched.ask("Where does this go?")
        expect(page.locator("#storage")).to_contain_text("full")
        expect(page.locator(".assistant")).to_contain_text("One One")
        page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('filler')).forEach((key) => localStorage.removeItem(key))")
        watched.ask("And now?")
        expect(page.locator("#storage")).to_be_empty()
    check([one["turns"][0]["user"] for one in watched.stored() if one["title"] == "Where does this go?"] == ["Where does this go?"], "not stored")


def check_stop(watched):
    """What has come of an answer that is stopped stays, and is part of what is sent next."""
    page = watched.page
    watched.restart()
    watched.set("max-tokens", "2000")
    page.locator("#prompt").fill("Tell a very long story.")
    page.keyboard.press("Enter")
    body = page.locator(".assistant .body")
    expect(body).not_to_be_empty(timeout=ANSWER_MS)
    page.keyboard.press("Escape")
    watched.wait()
    expect(page.locator(".assistant .note")).to_have_text("Stopped.")
    watched.reload()
    expect(page.locator(".assistant .note")).to_have_text("Stopped.")
    expect(body).not_to_be_empty()
    answers = [one["turns"][0]["answers"][0] for one in watched.stored() if one["title"] == "Tell a very long story."]
    text = next(answer["text"] for answer in answers if answer.get("note") == "Stopped.")
    with Fake(watched, "Gladly.") as fake:
        page.locator("#prompt").focus()
        watched.ask("Go on.")
        check(fake.said() == ["user: Tell a very long story.", f"assistant: {text}", "user: Go on."], f"sent {fake.said()}")
    # With the button, and in the middle of a reload: what came until then is kept.
    page.locator("#prompt").fill("Tell another one.")
    page.keyboard.press("Enter")
    expect(page.locator(".assistant .body").nth(2)).not_to_be_empty(timeout=ANSWER_MS)
    page.locator("#stop").press("Enter")
    watched.wait()
    check(page.evaluate("document.activeElement.id") == "prompt", "the focus did not come back to the prompt")
    watched.set("max-tokens", "48")


def check_retry(watched):
    page = watched.page
    watched.restart()
    with Fake(watched, "One", "Two", "Two again", "One again") as fake:
        page.locator("#prompt").focus()
        watched.ask("First")
        watched.ask("Second")
        retry = page.get_by_role("button", name="Retry")
        retry.nth(1).press("Enter")
        expect(page.locator(".assistant .body")).to_have_text(["One", "Two again"])
        check(fake.said() == fake.said(1) == ["user: First", "assistant: One", "user: Second"], f"sent {fake.said()}")
        retry.nth(0).press("Enter")  # an earlier answer: those after it go
        expect(page.locator(".assistant .body")).to_have_text(["One again"])
        check(fake.said() == ["user: First"], f"sent {fake.said()}")
        watched.wait()
    watched.reload()
    expect(page.locator(".assistant .body")).to_have_text(["One again"])


def check_edit(watched):
    page = watched.page
    watched.restart()
    edit, box = page.get_by_role("button", name="Edit"), page.locator(".editor textarea")
    with Fake(watched, "One", "Two", "Three", "Two again") as fake:
        page.locator("#prompt").focus()
        for question in "First", "Second", "Third":
            watched.ask(question)
        edit.nth(1).press("Enter")
        page.keyboard.press("Escape")
        expect(box).to_have_count(0)
        expect(page.locator(".user .body")).to_have_text(["First", "Second", "Third"])
        edit.nth(1).press("Enter")
        expect(page.locator(".editor .note")).to_contain_text("1 later question")
        box.fill("Second, changed")
        page.keyboard.press("Enter")
        expect(page.locator(".assistant .body")).to_have_text(["One", "Two again"])
        expect(page.locator(".user .body")).to_have_text(["First", "Second, changed"])
        check(fake.said() == ["user: First", "assistant: One", "user: Second, changed"], f"sent {fake.said()}")
        watched.wait()
    watched.reload()
    expect(page.locator(".user .body")).to_have_text(["First", "Second, changed"])


def check_copy(watched):
    page = watched.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    watched.restart()
    with Fake(watched, "Look:\n\n```python\nprint(1)\n\tprint(2)\n```\n"):
        page.locator("#prompt").focus()
        watched.ask("Show code")
    for name, text in (("Copy the python code", "print(1)\n\tprint(2)\n"), ("Copy the answer", "Look:\n\n```python\nprint(1)\n\tprint(2)\n```\n"),
                       ("Copy your message", "Show code")):
        page.get_by_role("button", name=name).press("Enter")
        expect(page.locator("#status")).to_contain_text("copied")
        check(page.evaluate("navigator.clipboard.readText()") == text, f"{name}: {page.evaluate('navigator.clipboard.readText()')!r}")
        page.locator("#status").evaluate("e => e.textContent = ''")


def check_keys(watched):
    """Shift+Enter begins a line, and the box grows with its lines."""
    page = watched.page
    watched.restart()
    page.locator("#prompt").focus()
    height = page.locator("#prompt").bounding_box()["height"]
    page.keyboard.type("a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("b")
    page.keyboard.press("Shift+Enter")
    check(page.locator("#prompt").input_value() == "a\nb\n" and page.locator(".turn").count() == 0, "Shift+Enter did not begin a line")
    check(page.locator("#prompt").bounding_box()["height"] > height, "the box does not grow")
    page.locator("#prompt").fill("")


def check_errors(watched):
    page = watched.page
    watched.restart()
    for parameters, error in (('{"bits"', "JSON"), ('{"bites": 4}', "bites")):
        watched.choose(0, "balanced")
        watched.part("parameters").fill(parameters)
        page.locator("#prompt").fill("")
        page.locator("#prompt").focus()
        watched.ask("Hello")
        expect(page.locator(".message.error").last).to_contain_text(error)
        check(page.locator(".message.error").count() == 1, "the failure before is still there")
    watched.part("parameters").fill("")
    page.locator("#prompt").fill("")


def check_comparison(watched):
    page = watched.page
    watched.restart()
    page.locator("#compare").press("Enter")
    watched.choose(0, "balanced", "ngram")
    watched.choose(1, "gated_eviction", "off")
    watched.part("parameters", 1).fill('{"tokens": 256}')
    watched.part("seen").locator("summary").press("Enter")  # closes it again
    watched.set("max-tokens", "96")
    text = (ROOT / "assets/evaluation/prose.txt").read_text(encoding="utf-8")
    page.locator("#prompt").fill(text[:2000] + "\n\nRepeat the first three sentences of this text.")
    page.locator("#prompt").focus()
    watched.ask("")
    check(page.locator(".message.assistant").count() == 2, "two policies, but not two answers")
    expect(page.locator("#status")).to_contain_text("same")
    bodies = page.locator(".assistant .body")
    if bodies.nth(0).inner_text() != bodies.nth(1).inner_text():
        check(page.locator(".assistant .differs").count() > 0, "what differs is not marked")
    watched.reload()
    expect(page.locator(".message.assistant")).to_have_count(2)
    check(watched.part("policy", 1).input_value() == "gated_eviction", "the second policy is not chosen any more")


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
        check(watched.faults == [], "; ".join(watched.faults))
        watched.context.close()


def check_narrow(browser, url):
    """The whole of a chat at 320 pixels, with what axe finds there."""
    watched = Watched(browser, url, viewport={"width": 320, "height": 568})
    check_chat(watched)
    in_sight(watched, 320, 568)
    check_accessible(watched)
    check(watched.faults == [], "; ".join(watched.faults))
    watched.context.close()


@contextlib.contextmanager
def served(arguments):
    """The page's address, without a path: the one that is given, or that of a server that runs as long as the block."""
    if arguments.url is not None:
        yield arguments.url.rstrip("/")
        return
    # A cache of a size that the picture can tell.
    with smartkv_server(arguments.smartkv, arguments.model, "--kv-cache-bytes", "512MiB") as url:
        yield url


def take_pictures(browser, url, folder):
    wide = Watched(browser, url, viewport={"width": 1440, "height": 900})
    check_chat(wide)
    check_drafts(wide)
    check_comparison(wide)
    wide.page.locator("#prompt").focus()
    wide.set("max-tokens", "96")
    wide.ask("Which of these sentences is the shortest?")
    wide.page.locator(".log").evaluate_all("logs => logs.forEach((log) => log.scrollTop = log.scrollHeight)")
    for scheme, name in (("light", "playground.png"), ("dark", "playground_dark.png")):
        wide.page.emulate_media(color_scheme=scheme)
        wide.page.screenshot(path=folder / name)
    phone = Watched(browser, url, viewport={"width": 390, "height": 844})
    check_chat(phone)
    phone.ask("And of Italy?")
    phone.page.screenshot(path=folder / "playground_narrow.png")
    for watched in wide, phone:
        watched.context.close()


IN_ONE_PAGE = (check_chat, check_cached_prompt, check_drafts, check_tiers, check_accessible, check_failure_and_limit, check_keys,
               check_markdown, check_hostile_answers, check_drawing, check_stop, check_retry, check_edit, check_copy, check_conversations,
               check_off_switch, check_quota, check_errors, check_comparison, check_accessible)
WITH_THEIR_OWN = (check_composer, check_folds, check_narrow, check_below_a_path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smartkv", help="the program; it is started with --model")
    parser.add_argument("--model")
    parser.add_argument("--url", help="address of a page that is served already, instead of --smartkv and --model")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--only", default="", help="names of checks, separated by commas; none: all of them")
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.url is None and None in (arguments.smartkv, arguments.model):
        parser.error("either --url, or --smartkv and --model")
    wanted = arguments.only.split(",") if arguments.only else None
    expect.set_options(timeout=60_000)

    with served(arguments) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"], timeout=ANSWER_MS)
        watched = Watched(browser, url, viewport={"width": 1280, "height": 720})
        for step in IN_ONE_PAGE:
            if wanted is None or step.__name__ in wanted:
                step(watched)
                check(watched.faults == [], f"{step.__name__}: " + "; ".join(watched.faults))
                print(f"{step.__name__}: passed", flush=True)
        for step in WITH_THEIR_OWN:
            if wanted is None or step.__name__ in wanted:
                step(browser, url)
                print(f"{step.__name__}: passed", flush=True)
        if arguments.screenshots is not None:
            take_pictures(browser, url, arguments.screenshots)
        browser.close()


if __name__ == "__main__":
    main()
