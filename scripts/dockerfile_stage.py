#!/usr/bin/env python3
"""Prints the instructions of a Dockerfile's stage and of the stages that it builds on, one a line: KIND, a tab, the rest.

    scripts/dockerfile_stage.py docker/Dockerfile runtime      # "" for the last stage

Continued lines are joined, comments left out. So scripts/check_container.sh can follow the file itself.
"""
import re
import sys


def stages(path):
    """Returns [(name, base, [(kind, rest)])] in the file's order."""
    text = "".join(line for line in open(path) if not line.lstrip().startswith("#"))
    found = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        kind, _, rest = line.strip().partition(" ")
        if kind == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append((name, base, []))
        else:
            found[-1][2].append((kind, rest.strip()))
    return found


def instructions(path, name):
    """Returns the instructions of a stage, those of its bases first."""
    known = stages(path)
    by_name = {stage[0]: stage for stage in known if stage[0]}
    stage = by_name[name] if name else known[-1]
    chain = [stage]
    while chain[0][1] in by_name:
        chain.insert(0, by_name[chain[0][1]])
    return [instruction for _, _, lines in chain for instruction in lines]


if __name__ == "__main__":
    for kind, rest in instructions(sys.argv[1], sys.argv[2]):
        print(f"{kind}\t{rest}")
