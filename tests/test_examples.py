"""Every example runs, and does what it says."""

import ast
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
RANDOM_CATCH = -0.6
"""Catch is won by one of five places at random: the mean return is 0.2 - 0.8."""


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_there_is_a_test_for_each():
    names = {path.stem for path in FOLDER.glob("*.py")}
    source = pathlib.Path(__file__).read_text()
    assert len(names) == 6
    assert [name for name in names if f'example("{name}")' not in source] == []


@pytest.mark.acme
def test_acme_program(example):
    assert example("acme_program").main(episodes=150) > RANDOM_CATCH + 0.5


@pytest.mark.acme
def test_acme_distributed(example):
    """As real processes: it ends by itself and in time, each node when it is told to."""
    path = example("acme_distributed").__file__
    process = subprocess.Popen(
        [sys.executable, path, "100", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
    )
    try:
        output, _ = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, output[-3000:]
    assert "did not terminate" not in output
    # The coordinator ends it after more than 100 steps, which are 12 episodes of nine.
    assert int(re.search(r"(\d+) episodes, mean return", output).group(1)) >= 12
    assert "Caught SIGTERM: forcing a checkpoint save" in output


def test_custom_network(example):
    assert example("custom_network").main(episodes=200) > RANDOM_CATCH + 0.5


def test_custom_environment(example):
    """From the eleventh step on the far end can pay: 14 of 24 steps."""
    best, engine = example("custom_environment").main(episodes=40)
    assert best == 14.0
    assert engine.episodes == 40 and engine.env_steps == 40 * 24


def test_uncertainty(example, capsys):
    """After a few episodes the near end is known better than the far one."""
    values = example("uncertainty").main(episodes=6)
    assert values.std.shape == (5, 2) and values.quantiles.shape == (3, 5, 2)
    assert np.all(values.quantiles[0] <= values.mean) and np.all(values.std > 0)
    assert values.std[0].max() < values.std[-1].max()
    assert capsys.readouterr().out.count("takes") == 5


def test_offline(example):
    assert example("offline").main(episodes=150, rounds=300) > RANDOM_CATCH + 0.5


@pytest.mark.parametrize("block, many", [(0, "episodes_until(500)"), (1, "range(200)")])
def test_programs_of_the_readme(block, many, capsys):
    """As printed, but for the number of episodes: 20 of nine steps are enough to begin to learn."""
    text = (FOLDER.parent / "README.md").read_text()
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[block]
    assert program.count(many) == 1
    exec(program.replace(many, re.sub(r"\d+", "20", many)), {})
    returns = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert len(returns) == 20 and set(returns) <= {-1.0, 1.0}


def test_examples_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    assert max(lengths.values()) <= 100, lengths
