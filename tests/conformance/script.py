# SPDX-License-Identifier: MIT
"""Reads a script of steps (README.md describes the language) and the list of deviations."""
import fnmatch

from modes import TINY_RING

LAYOUTS = ("procs", "threads", "one")
DIRECTIVES = ("pair", "warm", "off", "on")


class ScriptError(Exception):
    pass


class Step:
    """One line: who does it (None for the director), how (run, or one of HOWS) and the words."""

    HOWS = ("start", "begin", "finish", "still", "signal", "kill", "gone")

    def __init__(self, line_number, text):
        words = text.split()
        self.line_number, self.text = line_number, " ".join(words)
        self.actor, self.how = None, "run"
        if words[0] not in DIRECTIVES:
            self.actor = words.pop(0)
            if not self.actor[0].isupper() or not words:
                raise ScriptError(f"line {line_number}: not a step: {text}")
            if words[0] in self.HOWS:
                self.how = words.pop(0)
        self.words = words


class Script:
    def __init__(self, name, text):
        self.name, self.steps = name, []
        self.layouts, self.families, self.modes = ("procs",), ("4", "6", "m"), ("*",)
        self.tiny = False       # runs with the smallest ring too: no send waits for a reader who comes later
        self.buffers = ()       # ("small",): of the sockets that `pair` makes
        self.one_host = None    # why it does not run between hosts
        self.steady = None      # why it does not run in modes of unrest
        self.unswitched = None  # why warm modes need not prove that rings were used
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#", 1)[0].strip()
            if not line:
                continue
            word, _, rest = line.partition(" ")
            if word == "layouts":
                self.layouts = tuple(rest.split())
            elif word == "families":
                self.families = tuple(rest.split())
            elif word == "modes":
                self.modes = tuple(rest.split())
            elif word == "tiny":
                self.tiny = True
            elif word == "small_buffers":
                self.buffers = ("small",)
            elif word == "one_host":
                self.one_host = rest
            elif word == "steady":
                self.steady = rest
            elif word == "unswitched":
                self.unswitched = rest
            else:
                self.steps.append(Step(number, line))
        if not self.steps or set(self.layouts) - set(LAYOUTS):
            raise ScriptError(f"{name}: no steps, or a bad layout")

    def actors(self):
        """A and B, then whoever threads, forks and spawns bring, in order."""
        names = ["A", "B"]
        for step in self.steps:
            if step.words and step.words[0] in ("new_thread", "fork", "spawn"):
                names.append(step.words[1])
        return list(dict.fromkeys(names))

    def wants(self, mode):
        if (mode.unrest or mode.idle) and self.steady:
            return False  # a registration that changes sets is told once more of what is there, and it is not known where
        return ((mode.ring != TINY_RING or self.tiny) and (mode.road == "shm" or not self.one_host) and mode.layout in self.layouts and mode.family in self.families
                and any(fnmatch.fnmatchcase(mode.name, glob) for glob in self.modes))


class Deviation:
    """SCRIPT | MODES | STEP | RESULT | REASON, the first four as globs."""

    def __init__(self, line_number, line):
        fields = [f.strip() for f in line.split("|")]
        if len(fields) != 5 or not all(fields):
            raise ScriptError(f"deviations, line {line_number}: five fields are needed")
        self.line_number, self.used = line_number, False
        self.script, self.modes, self.step, self.result, self.reason = fields
        self.at_times = self.reason.startswith("at times")  # who comes first decides; not in every run

    def is_for(self, mode):
        return any(fnmatch.fnmatchcase(mode.name, glob) for glob in self.modes.split())

    def accepts(self, mode, step, result):
        return (self.is_for(mode) and fnmatch.fnmatchcase(step, self.step)
                and fnmatch.fnmatchcase(result, self.result))


def made_restless(lines, draw, warm):
    """The lines with what is said to whom before each step written out, as the director has it: draw(names of the actors so far) answers (word, name), or None."""
    actors, restless, begun = ["A", "B"], [], not warm
    for line in lines:
        words = line.split("#", 1)[0].split()
        if begun and words and (words[0] in DIRECTIVES or words[0][0].isupper()):
            said = draw(actors)
            restless += [" ".join(said)] if said else []
        restless.append(line)
        begun |= words[:1] in (["pair"], ["warm"])
        if len(words) > 2 and words[1] in ("new_thread", "fork", "spawn") and words[2] not in actors:
            actors.append(words[2])
    return restless


def read_deviations(path, script_name):
    rows = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            line = line.strip()
            if line and not line.startswith("#"):
                rows.append(Deviation(number, line))
    return [row for row in rows if fnmatch.fnmatchcase(script_name, row.script)]
