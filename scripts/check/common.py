# SPDX-License-Identifier: MIT
"""What the checks share: which files there are, and how a check reports.

A check is a program `scripts/check/NAME ROOT [BUILD]`. ROOT is the tree to look at: the repository,
or a known-bad sample below tests/checks. It prints one line a finding and exits with 1 if there is
any, also when it found nothing to look at.
"""
import os
import re
import shutil
import subprocess
import sys

SAMPLES = "tests/checks/"
C_FILES = (".c", ".h")


def arguments():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    build = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
    return root, build


def listed_files(root):
    """Paths of the tree, relative to it: what git tracks; where that is nothing, what lies there."""
    paths = []
    if shutil.which("git"):
        listing = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True,
                                 check=False)
        paths = [path for path in listing.stdout.decode().split("\0") if path]
    if not paths:
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith((".git", "build"))]
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(path for path in paths if os.path.isfile(os.path.join(root, path)))


def source_files(root, endings=C_FILES):
    """The listed files with such an ending, without the known-bad samples. None at all is wrong."""
    paths = [p for p in listed_files(root) if p.endswith(endings) and not p.startswith(SAMPLES)]
    if not paths:
        report(["no file to check below " + root])
    return paths


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def c_code(text):
    """The text with comments blanked out, line for line."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), text,
                  flags=re.S)


def report(findings, checked=None):
    """Prints and ends the program."""
    name = os.path.basename(sys.argv[0])
    for finding in findings:
        print(f"{name}: {finding}")
    if not findings and checked is not None:
        print(f"{name}: {checked}")
    sys.exit(1 if findings else 0)
