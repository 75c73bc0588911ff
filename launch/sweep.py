"""A sweep: python launch/sweep.py. Deep Sea in three encodings, three seeds each, two at a time.

The same as `eve sweep TASK ... --seeds 0-2 --jobs 2 -- --stop-when-solved`. It keeps finished runs,
so you may stop it and start it again.
"""

import sys

from eve_acme.cli.main import main

TASKS = [f"deep_sea:size=20,encoding={name}" for name in ("index", "two_hot", "rotated")]

if __name__ == "__main__":
    options = ["--seeds", "0-2", "--jobs", "2", "--out", "runs/encodings"]
    sys.exit(main(["sweep", *TASKS, *options, "--", "--stop-when-solved"]))
