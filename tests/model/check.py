#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Searches the Promela models exhaustively: as they are (must hold), with one deliberate breakage each (must fail), and some for runs without end.

    check.py [MODEL[:SEARCH]]...     all models without an argument; SEARCH is a scene, or a mutation without MUT_
    check.py --trail MODEL:SEARCH    prints the counter-example of a search that fails
    check.py --list

The verifier that spin writes is built and run in a temporary directory. Exit 0: all as expected, 1: not, 77: no spin here."""

import argparse
import concurrent.futures
import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from models import MODELS

HERE = os.path.dirname(os.path.abspath(__file__))
SEARCH_SECONDS = 240
MEMORY_MB = 1500
CC = os.environ.get("CC", "gcc").split()


def child_setup():
    """The child dies with this process and cannot eat the machine."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB << 20, MEMORY_MB << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(argv, cwd, seconds):
    return subprocess.run(argv, cwd=cwd, timeout=seconds, preexec_fn=child_setup, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


class Search:
    def __init__(self, model, name, flags, holds, why, cycles=False):
        self.model, self.name, self.flags, self.holds, self.why, self.cycles = model, name, flags, holds, why, cycles
        self.verdict, self.states, self.seconds, self.said = "", 0, 0.0, ""

    def build(self, cwd):
        made = run(["spin", "-a", *self.flags, os.path.join(HERE, self.model + ".pml")], cwd, 60)
        if made.returncode or not os.path.exists(os.path.join(cwd, "pan.c")) or "rror:" in made.stdout:
            raise RuntimeError("spin: " + made.stdout.strip())
        # A lost wake-up shows as a process that sleeps where nothing is left to happen, an end that never comes as a cycle in which every process gets its turn.
        kind = ["-DNP", "-DNFAIR=3"] if self.cycles else ["-DSAFETY"]
        made = run([*CC, "-O1" if self.holds else "-O0", "-w", *kind, f"-DMEMLIM={MEMORY_MB - 200}", "-o", "pan", "pan.c"], cwd, 120)
        if made.returncode:
            raise RuntimeError("cc: " + made.stdout.strip())

    def verify(self, cwd):
        return run(["./pan", *(["-l", "-f"] if self.cycles else []), "-m200000", "-w22"], cwd, SEARCH_SECONDS).stdout

    def search(self):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ringway-model-") as cwd:
            try:
                self.build(cwd)
                self.judge(self.verify(cwd))
            except subprocess.TimeoutExpired as late:
                self.verdict = f"took more than {late.timeout} s"
            except RuntimeError as failed:
                self.verdict = str(failed)
        self.seconds = time.monotonic() - began
        return self

    def judge(self, out):
        errors = re.search(r"errors: (\d+)", out)
        states = re.search(r"(\d+) states, stored", out)
        said = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", out, re.M)
        self.states = int(states.group(1)) if states else 0
        self.said = said.group(1) if said else ""
        if not errors or "Search not completed" in out and not int(errors.group(1)):
            self.verdict = "the search did not complete: " + out.strip()[-400:]
        elif self.holds and int(errors.group(1)):
            self.verdict = "does not hold: " + self.said
        elif not self.holds and not int(errors.group(1)):
            self.verdict = "the breakage went unnoticed"
        elif not self.holds and "max search depth" in self.said:
            self.verdict = "the search did not complete: " + self.said

    def print_trail(self):
        with tempfile.TemporaryDirectory(prefix="ringway-model-") as cwd:
            self.build(cwd)
            print(self.verify(cwd))
            print(run(["spin", "-k", self.model + ".pml.trail", "-p", "-g", *self.flags, os.path.join(HERE, self.model + ".pml")], cwd, 60).stdout)


def all_searches():
    for model, parts in MODELS.items():
        for scene, (flags, why) in parts["scenes"].items():
            yield Search(model, scene, flags, True, why)
        for mutation, (flags, why) in parts["mutations"].items():
            yield Search(model, mutation, [*flags, "-DMUT_" + mutation], False, why)
        for scene in parts.get("ends", ()):
            yield Search(model, scene + "-ends", parts["scenes"][scene][0], True, "everybody gets to an end in a bounded number of steps", cycles=True)
        for mutation, (flags, why) in parts.get("endless", {}).items():
            yield Search(model, mutation, [*flags, "-DMUT_" + mutation], False, why, cycles=True)


def chosen(names):
    searches = list(all_searches())
    if not names:
        return searches
    found = []
    for name in names:
        model, _, part = name.partition(":")
        hits = [s for s in searches if s.model == model and part in ("", s.name)]
        if not hits:
            sys.exit(f"no model or search is called '{name}'; --list names them")
        found += hits
    return found


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--trail", action="store_true")
    args = parser.parse_args()
    searches = chosen(args.names)
    if args.list:
        for s in searches:
            print(f"{s.model}:{s.name:32} {'holds' if s.holds else 'fails'}  {s.why}")
        return 0
    if not shutil.which("spin") or not shutil.which(CC[0]):
        print(f"skipped: spin and {CC[0]} are needed")
        return 77
    if args.trail:
        for s in searches:
            s.print_trail()
        return 0
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for s in pool.map(Search.search, searches):
            bad += bool(s.verdict)
            note = s.verdict or ("" if s.holds else s.said)
            print(f"{'NOT OK' if s.verdict else 'ok    '} {s.model}:{s.name:28} {s.states:9} states {s.seconds:6.1f} s  "
                  f"{'holds' if s.holds else 'fails'}  {note}", flush=True)
    print(f"{len(searches)} searches, {bad} not as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
