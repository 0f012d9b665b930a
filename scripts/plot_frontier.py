#!/usr/bin/env python3
"""Draws docs/results/frontier.svg from the first table of docs/results/evaluation.md: the memory of each policy against its quality.

    scripts/plot_frontier.py

x: bits per value, including all overhead; y: mean KL divergence from the full cache, logarithmic. Lower left is better.
Policies that were measured at several budgets are joined by a line.
"""

import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 50
COLOURS = ["#2a8a72", "#c4632a", "#5578c0", "#a35a9f", "#8f7d10", "#77828d"]
STYLE = """text { font: 13px system-ui, sans-serif; fill: #333 } .grid { stroke: #ddd }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .grid { stroke: #444 } }"""


def points():
    """Returns (name, bits per value, mean KL) of every row except the full cache's."""
    lines = (ROOT / "docs/results/evaluation.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| policy |") and "KL mean" in line)
    header = [cell.strip() for cell in lines[first].strip("|").split("|")]
    for line in lines[first + 2:]:
        if not line.startswith("|"):
            return
        row = dict(zip(header, (cell.strip() for cell in line.strip("|").split("|"))))
        if row["policy"] != "full":
            yield row["policy"], float(row["bits/value"]), float(row["KL mean"])


def place(taken, x, y, width):
    """Returns a place (left, height) for the label of the point (x, y) that overlaps no earlier label. It tries the
    right side, the left side, then places farther away."""
    for step in range(40):
        top = y + 4 + (step + 1) // 2 * 15 * (-1) ** step
        for left in (x + 7, x - 7 - width):
            inside = LEFT < left and left + width < WIDTH
            if inside and not any(abs(top - t) < 14 and left < e and b < left + width for b, e, t in taken):
                taken.append((left, left + width, top))
                return left, top
    raise ValueError("the picture has no room for all labels")


def draw(rows):
    least_bits = math.floor(min(bits for _, bits, _ in rows))
    most_bits = math.ceil(max(bits for _, bits, _ in rows))
    logarithms = [math.log10(kl) for *_, kl in rows]
    exponents = range(math.floor(min(logarithms)), 1 + math.ceil(max(logarithms)))

    def x(bits):
        return LEFT + (WIDTH - LEFT - RIGHT) * (bits - least_bits) / (most_bits - least_bits)

    def y(kl):
        span = exponents[-1] - exponents[0]
        return TOP + (HEIGHT - TOP - BOTTOM) * (exponents[-1] - math.log10(kl)) / span

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           "<title>Divergence from the full cache against bits per value, by policy</title>", f"<style>{STYLE}</style>"]
    for bits in range(least_bits, most_bits + 1):
        out.append(f'<line class="grid" x1="{x(bits):.1f}" x2="{x(bits):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{x(bits):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{bits}</text>')
    for exponent in exponents:
        at = y(10 ** exponent)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
                   f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0 ** exponent:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
               "bits per value, all counted</text>")
    out.append(f'<text transform="rotate(-90 16 {HEIGHT / 2})" x="16" y="{HEIGHT / 2}" text-anchor="middle">'
               "mean KL divergence</text>")
    families = {}
    for name, bits, kl in sorted(rows, key=lambda row: row[1]):
        families.setdefault(name.split("@")[0], []).append((name, bits, kl))
    taken = []
    for i, family in enumerate(families.values()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(bits):.1f},{y(kl):.1f}" for _, bits, kl in family)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        for name, bits, kl in family:
            left, top = place(taken, x(bits), y(kl), 7.5 * len(name))
            out.append(f'<circle cx="{x(bits):.1f}" cy="{y(kl):.1f}" r="4" fill="{colour}"/>'
                       f'<text x="{left:.1f}" y="{top:.1f}" style="fill: {colour}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    (ROOT / "docs/results/frontier.svg").write_text(draw(list(points())), encoding="utf-8")
