#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""smoke.py BUILD: the benchmarks still run and every row still gets a figure. No verdict: times on a loaded machine mean nothing."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: " + __doc__.split(":", 1)[0])
    build = sys.argv[1]
    done = subprocess.run([sys.executable, os.path.join(HERE, "run"), build, "1", "1", "--json"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, timeout=100, check=False, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    result = json.loads(done.stdout)
    for row in result["rows"]:
        print(f"{row['name']}: {row['value']:.3f}")
        if row["value"] < 0 and "more" not in row["name"]:
            return f"no figure for {row['name']}"
    return 0 if len(result["rows"]) == 20 and done.returncode in (0, 1) else "rows are missing"


if __name__ == "__main__":
    sys.exit(main())
