"""Runs a script that imports Acme 0.4.0: `python -m eve_acme.agent script.py args...`.

Importing this package repairs JAX for Acme before the script runs.
"""

import pathlib
import runpy
import sys

from eve_acme.errors import UsageError


def main(words: list[str]) -> None:
    """Runs the script as `python script.py args...` would.

    Args:
      words: the script's path, then its arguments.
    """
    got = words[0] if words else ""
    if not pathlib.Path(got).is_file():
        raise UsageError(
            f"script: got {got!r}, allowed is a file: python -m eve_acme.agent SCRIPT [ARGS]"
        )
    sys.argv = words
    sys.path[0] = str(pathlib.Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
