# SPDX-License-Identifier: MIT
"""run.py [--shim SO [--verbs DIRECTORY] [--tool RINGWAY]] [--mode GLOB] [--repeat N] [--verbose] PROGRAM SCRIPT...: the differential harness.

A SCRIPT is a file, or random:FIRST-LAST[:STEPS] for random scripts of these seeds.

Each script runs on kernel TCP once per layout, address family and warm-up, then in every mode under the preload; the traces must
be equal but for the rows of `deviations`. With --verbs the modes are those between hosts, over the double of verbs in that directory, or with --verbs device
over a real device, whose addresses are then in CONFORM_ADDRESS and CONFORM_ADDRESS6. Without --shim the script is only run on kernel TCP, N times, and must give
one and the same trace each time. Exit status 0: all equal.
"""
import argparse
import fnmatch
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import ringway_support as support  # noqa: E402
import stamps  # noqa: E402
from director import Director  # noqa: E402
from modes import MODES, VERBS_MODES  # noqa: E402
from random_steps import Generator  # noqa: E402
from script import Script, read_deviations  # noqa: E402

MAX_SHOWN, MAX_HANGS = 12, 2


class Unrest:
    """Asks one of the processes to be off, or on again, now and then; the same times for one seed and script. How often it took is not traced."""

    def __init__(self, mode, script_name):
        self.random = random.Random(f"{mode.unrest} {script_name}")

    def __call__(self, names):
        draw, name = self.random.random(), self.random.choice(names)
        word = "off" if draw < 0.15 else "on" if draw < 0.4 else None
        return (word, name) if word else None


class Runner:
    def __init__(self, options, script, scratch):
        self.options, self.script, self.scratch = options, script, scratch
        self.deviations = read_deviations(HERE / "deviations", script.name)
        self.baselines, self.hangs = {}, 0
        self.modes = VERBS_MODES if options.verbs else MODES
        self.complaints = {}  # lines -> the modes in which they came

    def complain(self, mode_name, lines):
        self.complaints.setdefault(tuple(lines), []).append(mode_name)

    def report(self):
        """Answers the number of complaints; the same one in several modes is told once."""
        for lines, modes in self.complaints.items():
            print(f"{self.script.name} [{' '.join(modes)}]:")
            for line in lines:
                print("   ", line)
        sys.stdout.flush()
        return sum(len(modes) for modes in self.complaints.values())

    def say(self, word, pid):
        command = [self.options.tool, word] + ["--wait", "0"] * (word == "off") + [str(pid)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)

    def play(self, label, layout, family, warm, stage_env, say=None, unrest=None):
        stderr_path = os.path.join(self.scratch, "stderr")
        open(stderr_path, "w", encoding="utf-8").close()
        trace = Director(self.options.program, self.script, layout, family, warm, stage_env, stderr_path, say, unrest).run()
        noise = pathlib.Path(stderr_path).read_text(encoding="utf-8", errors="replace").strip()
        if noise:
            self.complain(label, ["on stderr:"] + noise.splitlines()[:MAX_SHOWN])
        if any(result.startswith("HANG") for _, _, result in trace):
            self.hangs += 1
        if self.options.verbose:
            print(f"--- {self.script.name} [{label}]")
            for number, step, result in trace:
                print(f"{number:4} {step:40} {result}")
        return trace

    def baseline(self, layout, family, warm=True):
        key = layout, family, warm
        if key not in self.baselines:
            self.baselines[key] = self.play(f"tcp-{layout}-v{family}", layout, family, warm,
                                            lambda who: support.clean_env())
            last = self.baselines[key][-1]
            if last[2].startswith("HANG"):
                self.complain(f"tcp-{layout}-v{family}", [f"line {last[0]}: {last[1]}: {last[2]}"])
        return self.baselines[key]

    def differences(self, mode, ours):
        tcp = self.baseline(mode.layout, mode.family, mode.warm)
        found = []
        for i in range(max(len(tcp), len(ours))):
            want = tcp[i] if i < len(tcp) else (0, "", "nothing")
            have = ours[i] if i < len(ours) else (want[0], want[1], "nothing")
            if want[1:] == have[1:]:
                continue
            rows = [row for row in self.deviations if row.accepts(mode, have[1], have[2])]
            for row in rows:
                row.used = True
            if not rows:
                found.append((have[0], have[1], want[2], have[2]))
            if have[2].startswith("HANG"):
                break
        return found

    def run_mode(self, mode):
        summary = os.path.join(self.scratch, mode.name)

        def stage_env(who):
            env = support.preload_env(self.options.shim, after=mode.after, spin=mode.spin, ring=mode.ring, idle=mode.idle, summary=summary)
            if mode.road == "verbs":
                env["RINGWAY_TRANSPORTS"] = "verbs"
                if self.options.verbs == "device":
                    env["RINGWAY_PATIENCE"] = "10000"
                else:
                    env |= {"LD_LIBRARY_PATH": self.options.verbs, "VERBS_DOUBLE": mode.device}
            if mode.who == "dormant":
                del env["RINGWAY"]
            return env if mode.who in ("both", "dormant", who) else support.clean_env()

        unrest = Unrest(mode, self.script.name) if mode.unrest else None
        ours = self.play(mode.name, mode.layout, mode.family, mode.warm, stage_env, self.say if self.options.tool else None, unrest)
        lines = []
        for number, step, want, have in self.differences(mode, ours)[:MAX_SHOWN]:
            lines += [f"line {number}: {step}", f"    kernel TCP: {want}", f"    Ringway:    {have}"]
        lines += self.proof(mode, support.read_summary(summary))
        if lines:
            self.complain(mode.name, lines)

    def proof(self, mode, summaries):
        """A warm run with both ends that used no ring proves nothing; a run with one end has no ring to use."""
        switched, sent, received = support.add_up(summaries)
        if mode.who != "both":
            return [f"a ring was used with one end only: {summaries}"] if switched or sent or received else []
        if mode.warm and not mode.device and not self.script.unswitched and not (switched and sent and received):
            return [f"no ring was used, so that nothing is proved: {summaries}"]
        if any(road != mode.road and count for s in summaries for road, count in s["switched"].items()):
            return [f"another road was taken: {summaries}"]
        return []

    def stale(self):
        if self.options.mode == "*":
            for row in self.deviations:
                if not row.used and not row.at_times and "*" not in row.script and any(row.is_for(mode) for mode in self.modes if self.script.wants(mode)):
                    self.complain("deviations", [f"line {row.line_number} no longer occurs: {row.step}: {row.result}"])

    def run(self):
        for mode in self.modes:
            if mode.unrest and not self.options.tool:
                continue
            if self.script.wants(mode) and fnmatch.fnmatchcase(mode.name, self.options.mode):
                self.run_mode(mode)
            if self.hangs >= MAX_HANGS:
                print(f"{self.script.name}: {self.hangs} runs hung, the rest is left out")
                return
        self.stale()

    def run_tcp_only(self):
        for layout in self.script.layouts:
            for family in self.script.families:
                if self.hangs:
                    return
                first = self.baseline(layout, family)
                for _ in range(1, self.options.repeat if not self.hangs else 1):
                    again = self.play(f"tcp-{layout}", layout, family, True, lambda who: support.clean_env())
                    lines = [f"line {x[0]}: {x[1]}: {x[2]} and {y[2]}" for x, y in zip(first, again) if x != y]
                    if lines or len(first) != len(again):
                        self.complain(f"tcp-{layout}-v{family}, not deterministic", lines[:MAX_SHOWN])


def texts_of(word, forks):
    """(name, text) of each script that one argument stands for."""
    if not word.startswith("random:"):
        yield pathlib.Path(word).stem, pathlib.Path(word).read_text(encoding="utf-8")
        return
    seeds, _, steps = word[len("random:"):].partition(":")
    first, _, last = seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        yield f"random-{seed}", Generator(seed, forks).script(int(steps or 120))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shim", help="the preload; without it only kernel TCP is run")
    parser.add_argument("--verbs", metavar="DIRECTORY", help="the modes between hosts, over the double of verbs that lies there, or over a \"device\"")
    parser.add_argument("--tool", help="the ringway command; without it the modes of unrest are left out")
    parser.add_argument("--mode", default="*", help="glob of the modes to run")
    parser.add_argument("--repeat", type=int, default=3, help="how often kernel TCP is run without --shim")
    parser.add_argument("--verbose", action="store_true", help="print every trace")
    parser.add_argument("program")
    parser.add_argument("scripts", nargs="+")
    options = parser.parse_args()
    failures = scripts = 0
    asking = None
    for script in (Script(*pair) for word in options.scripts for pair in texts_of(word, not options.verbs)):
        scripts += 1
        if not asking and any("SO_TIMESTAMP" in step.text for step in script.steps):
            asking = stamps.hold()
        scratch = tempfile.mkdtemp(prefix="conform-")
        try:
            runner = Runner(options, script, scratch)
            runner.run() if options.shim else runner.run_tcp_only()
            failures += runner.report()
        finally:
            shutil.rmtree(scratch)
    print(f"{scripts} script(s), {failures} complaint(s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
