"""The mathematics and the embedded engine import neither Acme nor Reverb nor TensorFlow."""

import pathlib
import re
import subprocess
import sys

import pytest

BLOCKED = ("acme", "reverb", "launchpad", "tensorflow", "sonnet", "tree")
PURE = ("core", "replay", "environments", "embedded", "types.py", "config.py", "saved.py")
ROOT = pathlib.Path(__file__).parents[1]


def _run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def _blocking(names) -> str:
    return (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {tuple(names)!r}:\n"
        "            raise ImportError('blocked: ' + name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )


def test_everything_but_the_agent_imports_with_acme_blocked():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "eve_acme").rglob("*.py"))
        if path.relative_to(ROOT).parts[1] in PURE
    ]
    assert "eve_acme.core.update" in modules and "eve_acme.embedded.engine" in modules
    lines = "".join(f"import {name.removesuffix('.__init__')}\n" for name in modules)
    done = _run(_blocking(BLOCKED) + lines + "print('imported')")
    assert done.stdout.strip() == "imported", done.stderr


def test_the_block_blocks():
    done = _run(_blocking(BLOCKED) + "import reverb")
    assert done.returncode != 0 and "blocked: reverb" in done.stderr


ROOMS = ("core", "replay", "environments", "embedded", "agent", "experiments", "distributed", "cli")
"""In the order in which they may import: each those before it."""


def test_imports_run_one_way():
    """As the source says, whenever they happen; and nothing imports the programs of launch/."""
    for path in sorted((ROOT / "eve_acme").rglob("*.py")):
        room = path.relative_to(ROOT / "eve_acme").parts[0]
        for word in re.findall(r"(?:from|import) eve_acme\.(\w+)", path.read_text()):
            if word in ROOMS:
                allowed = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ROOMS[:5]
                assert word in allowed, f"{path} imports {word}"
        assert not re.search(r"^\s*(from|import) launch\b", path.read_text(), re.MULTILINE), path


@pytest.mark.acme
def test_the_engines_do_not_import_each_other():
    done = _run(_blocking(["acme"]) + "import eve_acme.embedded\nprint('ok')")
    assert done.stdout.strip() == "ok", done.stderr
    code = (
        "import eve_acme.agent, sys\n"
        "print(any(name.startswith('eve_acme.embedded') for name in sys.modules))"
    )
    assert _run(code).stdout.strip().splitlines()[-1] == "False"


def test_the_builder_without_acme_says_what_to_install():
    done = _run(_blocking(["acme"]) + "from eve_acme import EVEBuilder")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "pip install 'eve-acme[acme]'" in last, done.stderr


REFUSED = {
    "run bandit/0 --engine acme --out {out}": "--engine acme: allowed once acme is installed",
    "run bandit/0 --agent dqn --out {out}": "--agent dqn: allowed once rlax is installed",
    "launch bandit/0 --out {out}": "eve launch: allowed once acme is installed",
    "chaos --out {out}": "eve chaos: allowed once acme is installed",
    "node --role actor -- bandit/0 --out {out}": "eve node: allowed once acme is installed",
    "bench distributed --out {out}": "eve bench distributed: allowed once acme is installed",
}
"""Commands that a plain install cannot run, and what each says, in one line, before it writes."""


def test_what_needs_missing_packages_says_which_in_one_line(tmp_path):
    out = tmp_path / "out"
    lines = [
        f"print(main({line.format(out=out).split()!r}), file=sys.stderr)\n" for line in REFUSED
    ]
    code = "from eve_acme.cli.main import main\n" + "".join(lines)
    done = _run(_blocking(["acme", "reverb", "launchpad", "rlax"]) + code)
    said = done.stderr.splitlines()
    assert [line.partition(" (")[0] for line in said[::2]] == [
        f"eve: {line}" for line in REFUSED.values()
    ]
    assert said[1::2] == ["2"] * len(REFUSED)
    assert "Python 3.10 on Linux x86_64" in said[0] and "'eve-acme[baselines]'" in said[2]
    assert not out.exists()
