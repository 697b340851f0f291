# SPDX-License-Identifier: MIT
"""The modes in which every script runs. Not the full product: each row is there for what it alone would find."""
import collections

Mode = collections.namedtuple("Mode", "name layout family who after spin warm ring road unrest idle device")

TINY_RING = 4096
BIG_RING = 2 << 20  # there is no second ring between hosts: this much can be unread, as in the kernel's socket


def _mode(layout, family, who, after, spin, warm, ring=None, road="shm", unrest=None, idle=None, lost=None):
    words = [layout, f"v{family}", who, f"after-{after}", f"spin-{spin}", "warm" if warm else "cold"]
    if ring and ring != BIG_RING:
        words.append(f"ring-{ring}")
    if lost:
        words.append(f"lost-{lost}")
    if road != "shm":
        words.append(road)
    if unrest:
        words.append("unrest")
    if idle:
        words.append("idle")
    return Mode("-".join(words), layout, family, who, None if after == "default" else after, spin, warm, ring, road, unrest, idle,
                f"remove-at={lost}" if lost else "")


def _verbs(layout, family, who, after, spin, warm, ring=BIG_RING, lost=None):
    return _mode(layout, family, who, after, spin, warm, ring, "verbs", lost=lost)


MODES = (
    # Both lanes on rings from the first step on.
    _mode("procs", "4", "both", "0", "0", True),
    _mode("procs", "4", "both", "0", "auto", True),
    _mode("procs", "6", "both", "default", "0", True),
    _mode("procs", "m", "both", "default", "auto", True),
    # A ring so small that everything wraps, and the smallest one, for scripts that say that they fit ("tiny").
    _mode("procs", "4", "both", "0", "0", True, ring=32768),
    _mode("procs", "4", "both", "0", "0", True, ring=TINY_RING),
    # The switch falls between the steps, wherever they lead to it.
    _mode("procs", "4", "both", "0", "auto", False),
    _mode("procs", "6", "both", "0", "0", False),
    _mode("procs", "4", "both", "default", "0", False),
    # One end only: never a switch, never a difference.
    _mode("procs", "4", "A", "0", "auto", True),
    _mode("procs", "4", "B", "0", "0", True),
    _mode("procs", "m", "A", "default", "0", False),
    _mode("procs", "6", "B", "default", "auto", False),
    # Preloaded, not enabled.
    _mode("procs", "4", "dormant", "0", "0", True),
    # Both ends in one process, and in one thread.
    _mode("threads", "4", "both", "0", "auto", True),
    _mode("threads", "6", "both", "0", "0", False),
    _mode("one", "4", "both", "0", "0", True),
    _mode("one", "m", "both", "default", "auto", True),
    _mode("one", "4", "both", "0", "auto", False),
    # Taken back to TCP and let out again between the steps, whichever end is asked.
    _mode("procs", "4", "both", "0", "0", True, unrest=1),
    _mode("procs", "6", "both", "0", "auto", True, ring=TINY_RING, unrest=2),
    _mode("procs", "m", "both", "0", "auto", False, unrest=3),
    _mode("threads", "4", "both", "0", "0", True, unrest=4),
    _mode("one", "6", "both", "0", "auto", True, unrest=5),
    # Given back to TCP whenever nothing has gone over it for a moment, which is between any two steps, and out again with the next.
    _mode("procs", "4", "both", "0", "0", True, idle="0.004"),
    _mode("procs", "6", "both", "default", "auto", True, ring=TINY_RING, idle="0.02"),
    _mode("threads", "m", "both", "0", "auto", False, idle="0.004"),
    _mode("one", "4", "both", "0", "0", True, idle="0.01"),
)

# Both ends as if on two hosts, over the double of verbs (tests/verbs_double). What does not depend on the road is not asked again.
VERBS_MODES = (
    _verbs("procs", "4", "both", "0", "0", True),
    _verbs("procs", "6", "both", "default", "auto", True),
    _verbs("procs", "m", "both", "0", "0", True),
    _verbs("procs", "4", "both", "0", "0", True, TINY_RING),
    _verbs("procs", "4", "both", "0", "auto", False),
    _verbs("procs", "6", "both", "default", "0", False),
    _verbs("procs", "4", "A", "0", "auto", True),
    _verbs("procs", "4", "B", "0", "0", False),
    _verbs("threads", "4", "both", "0", "auto", True),
    _verbs("one", "4", "both", "0", "0", True),
    _verbs("one", "4", "both", "0", "auto", False),
    # The device is removed from whoever comes first to so many posts: what is on the rings then goes on over TCP.
    _verbs("procs", "4", "both", "0", "0", True, lost=9),
    _verbs("procs", "4", "both", "0", "0", True, lost=13),
    _verbs("threads", "4", "both", "0", "auto", True, lost=17),
)
