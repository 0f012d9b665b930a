#!/usr/bin/env python3
"""Checks that THIRD_PARTY.md names what the build uses, and nothing else: check_third_party.py [ROOT]

The build uses
  - the Debian packages of scripts/setup.sh that end in -dev; the others are tools;
  - the packages and modules that CMakeLists.txt finds, except CMake's own;
  - the folders of sources in third_party/: those that exist, and those that scripts/fetch_*.sh creates;
  - the pinned packages of PyPI, with their versions;
  - the gates and drafts that ship.
THIRD_PARTY.md names them in backticks, in the columns with the heading "in the build". Exits with 1 if a name is missing
or unused.
"""
import pathlib
import re
import sys

OF_CMAKE = {"Threads", "PkgConfig"}
HEADING = "in the build"


def read(root, name):
    """Returns a file's text without the comments of shell and CMake."""
    return re.sub(r"(^|\s)#.*", "", (root / name).read_text(encoding="utf-8"))


def used_names(root):
    """Returns a description of its use for each name."""
    used = {}
    setup, cmake = read(root, "scripts/setup.sh"), read(root, "CMakeLists.txt")
    for package in re.findall(r"[a-z0-9.+-]+-dev\b", setup):
        used[package] = "a Debian package of scripts/setup.sh"
    for package in re.findall(r"find_package\((\w+)", cmake):
        if package not in OF_CMAKE:
            used[package] = "find_package() in CMakeLists.txt"
    for arguments in re.findall(r"pkg_check_modules\(\w+([^)]*)\)", cmake):
        for module in set(arguments.split()) - {"REQUIRED", "IMPORTED_TARGET"}:
            used[module] = "pkg_check_modules() in CMakeLists.txt"
    for pattern in ("third_party/*/", "third_party/*/3rdparty/*/"):
        for folder in root.glob(pattern):
            used[folder.relative_to(root).as_posix()] = "a folder of third_party/"
    for script in root.glob("scripts/fetch_*.sh"):
        text, of_script = read(root, f"scripts/{script.name}"), f"scripts/{script.name}"
        for target in re.findall(r"^target=(third_party/\S+)", text, re.M):
            used[target] = of_script
            for part in re.findall(r"\b3rdparty/[\w-]+", text):
                used[f"{target}/{part}"] = of_script
        version = re.search(r"^version=(\S+)", text, re.M)
        for package in re.findall(r"\b[\w-]+==(?:\$version\b|[\w.]+)", text):
            used[package.replace("$version", version[1] if version else "")] = of_script
    used["torch==" + re.search(r"^TORCH_VERSION=(\S+)", setup, re.M)[1]] = "TORCH_VERSION in scripts/setup.sh"
    for package in read(root, "deploy/ray/requirements.txt").split():
        used[package] = "deploy/ray/requirements.txt"
    for asset in [*root.glob("assets/*/*.safetensors"), *root.glob("assets/calibration/*.txt"),
                  *root.glob("assets/evaluation/*.txt"), *root.glob("assets/evaluation/*.json")]:
        used[asset.relative_to(root).as_posix()] = "a file that ships"
    return used


def named(text):
    """Returns the names in the columns with the heading."""
    names, column = set(), None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")] if line.startswith("|") else []
        if not cells:
            column = None
        elif HEADING in cells:
            column = cells.index(HEADING)
        elif column is not None:
            names.update(re.findall(r"`([^`]+)`", cells[column]))
    return names


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    used, names = used_names(root), named((root / "THIRD_PARTY.md").read_text(encoding="utf-8"))
    problems = [f"THIRD_PARTY.md does not name {name}: {why}" for name, why in sorted(used.items()) if name not in names]
    problems += [f"THIRD_PARTY.md names {name}, which nothing uses" for name in sorted(names - used.keys())]
    sys.exit("\n".join(f"error: {problem}" for problem in problems) or 0)


main()
