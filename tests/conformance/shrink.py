# SPDX-License-Identifier: MIT
"""shrink.py --shim SO [--tool RINGWAY] --mode NAME PROGRAM SCRIPT: leaves out of a script what its difference does not need, and prints the rest.

For a random script (random:SEED) that differs somewhere in the middle of much else. The rest must still end on kernel TCP
without a hang, with the same difference: the step that differs first, and its two results but for sums. What a mode of unrest says between the steps
is written out among them, and the mode is then the same without.
"""
import argparse
import os
import re
import shutil
import sys
import tempfile

import run  # first: it tells where ringway_support is
import director
from modes import MODES
from script import Script, ScriptError, made_restless

HEADER = ("layouts", "families", "modes", "tiny", "small_buffers", "unswitched")


class Shrinker:
    def __init__(self, options, mode):
        self.options, self.mode = options, mode
        self.wanted = None

    def difference(self, lines):
        """The first one, or None; None as well for a script that cannot be carried out."""
        scratch = tempfile.mkdtemp(prefix="conform-shrink-")
        try:
            runner = run.Runner(self.options, Script("random-shrunk", "\n".join(lines)), scratch)
            tcp = runner.baseline(self.mode.layout, self.mode.family, self.mode.warm)
            if not tcp or runner.hangs or runner.complaints or any("ended" in row[2] for row in tcp if "exit" not in row[1]):
                return None
            runner.run_mode(self.mode)
            for complaint in runner.complaints:
                if complaint[0].startswith("line") and len(complaint) > 2:
                    return tuple(re.sub(r"line \d+: |[0-9a-f]{8}|\(.*", "", line) for line in complaint[:3])
            return None
        except (ScriptError, IndexError, KeyError):
            return None
        finally:
            shutil.rmtree(scratch)

    def holds(self, lines):
        return any(self.difference(lines) == self.wanted for _ in range(self.options.tries))

    def shrink(self, lines):
        self.wanted = self.difference(lines)
        if not self.wanted:
            sys.exit("no difference in this mode")
        print("#", *self.wanted, sep="\n# ", file=sys.stderr)
        size = len(lines) // 2
        while size:
            at = 0
            while at < len(lines):
                rest = lines[:at] + [line for line in lines[at:at + size] if line.split()[0] in HEADER] + lines[at + size:]
                if len(rest) < len(lines) and self.holds(rest):
                    lines = rest
                    print(f"# {len(lines)} lines", file=sys.stderr, flush=True)
                else:
                    at += size
            size //= 2
        return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shim", required=True)
    parser.add_argument("--tool", help="the ringway command")
    parser.add_argument("--mode", required=True)
    parser.add_argument("--tries", type=int, default=1, help="how often a rest is tried, for differences that do not come each time")
    parser.add_argument("program")
    parser.add_argument("script")
    options = parser.parse_args()
    options.verbose, options.verbs = False, None
    director.REPLY_SECONDS = 2
    mode = next(mode for mode in MODES if mode.name == options.mode)
    name, text = next(run.texts_of(options.script, "-verbs" not in options.mode))
    lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
    if mode.unrest:
        lines, mode = made_restless(lines, run.Unrest(mode, name), mode.warm), mode._replace(unrest=None)
    print("\n".join(Shrinker(options, mode).shrink(lines)))
    return 0


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.exit(main())
