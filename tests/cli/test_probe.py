"""`eve probe`: counts by hand, and the paper's sanity check on a smaller grid."""

import json

import numpy as np
import pytest
from bsuite.environments.deep_sea import DeepSea

from eve_acme.cli import probe
from eve_acme.cli.main import main
from eve_acme.environments.wrappers import OneHotAsIndex
from eve_acme.experiments import visits
from eve_acme.replay import journal
from eve_acme.types import New, Transition


def test_summary_of_a_case_by_hand():
    """Visits 0, 1, 2 | 0, 0, 3 by action; spread falls with visits in all but one place."""
    numbers = probe.summary(
        probe.Probe(
            visits=np.array([[0, 0], [1, 0], [2, 3]]),
            std=np.array([[0.9, 0.8], [0.2, 0.1], [0.3, 0.05]]),
        )
    )
    # By state: visits 0, 1, 5 and spreads 0.85, 0.15, 0.175: ranks 1 2 3 and 3 1 2.
    assert numbers["states"]["rank_correlation"] == pytest.approx(-0.5)
    assert numbers["states"]["median_std_unvisited"] == pytest.approx(0.85)
    assert numbers["states"]["unvisited_above_visited"] == 1.0
    # By pair: 0.9, 0.8 and 0.1 against 0.2, 0.3 and 0.05: 3 + 3 + 1 of 9 are above.
    assert numbers["state_actions"]["unvisited_above_visited"] == pytest.approx(7 / 9)
    assert numbers["state_actions"]["median_std_visited"] == pytest.approx(0.2)


def test_visits_of_an_environment_and_of_a_journal(tmp_path):
    """One random episode a way down a 4x4 sea, each step a row deeper."""
    environment = visits.Counted(OneHotAsIndex(DeepSea(4, mapping_seed=1)))
    timestep, states = environment.reset(), []
    for action in (0, 1, 1, 0):
        states.append(int(timestep.observation))
        timestep = environment.step(action)
    assert [state // 4 for state in states] == [0, 1, 2, 3]
    expected = np.zeros((16, 2), int)
    for state, action in zip(states, (0, 1, 1, 0), strict=True):
        expected[state, action] = 1
    np.testing.assert_array_equal(environment.visits, expected)

    kept = journal.Journal(tmp_path / "state" / "replay.journal")
    new = New(Transition(np.array(states), np.array([0, 1, 1, 0]), (), (), ()), np.zeros(4))
    for index in range(3):
        kept.append((journal.TRAJECTORY, new))
        kept.append((journal.EPISODE, (0, index, {})))
    seen, episodes = visits.of_launch(tmp_path, 16, 2)
    assert episodes == 3
    np.testing.assert_array_equal(seen, 3 * expected)


def test_groups_of_visits():
    names, groups = probe._groups(np.array([0, 1, 3, 4, 200]), np.arange(5.0))
    assert names == ["0", "1", "3-4", "129+"]
    assert [list(group) for group in groups] == [[0.0], [1.0], [2.0, 3.0], [4.0]]


@pytest.mark.parametrize("engine", [None, "embedded", pytest.param("acme", marks=pytest.mark.acme)])
def test_the_unvisited_stand_clearly_above_the_visited(tmp_path, engine, capsys):
    out = tmp_path / "probe"
    words = ["--task", "deep_sea:size=12", "--episodes", "25"]
    if engine:
        run = tmp_path / "run"
        words = ["run", "deep_sea:size=12", "--episodes", "25", "--quiet", "--out", str(run)]
        assert main([*words, "--engine", engine]) == 0
        words, out = [str(run)], run / "probe"
    assert main(["probe", *words, *([] if engine else ["--out", str(out)])]) == 0
    numbers = json.loads((out / "probe.json").read_text())
    assert numbers["states"]["visited"] + numbers["states"]["unvisited"] == 12 * 13 // 2
    assert numbers["states"]["unvisited"] >= 3
    for part in ("states", "state_actions"):
        assert numbers[part]["rank_correlation"] < -0.7
        assert numbers[part]["unvisited_above_visited"] > 0.95
        assert numbers[part]["median_std_unvisited"] > 10 * numbers[part]["median_std_visited"]
    visits = np.loadtxt(out / "probe.csv", delimiter=",", skiprows=1)[:, 0]
    assert visits.sum() == 25 * 12  # Every step of 25 episodes was somewhere.
    assert (out / "probe.png").read_bytes().startswith(b"\x89PNG")
    assert "rank correlation -0." in capsys.readouterr().out


@pytest.mark.parametrize(
    "words,message",
    [
        (["nowhere"], "DIR: got 'nowhere', allowed is the DIR of an earlier run"),
        (["--task", "catch/0"], "task: got 'catch/0', allowed for probe is a Deep Sea"),
        (["--task", "deep_sea:size=5,encoding=raw"], "allowed for probe is encoding=index"),
        (["nowhere", "--omega", "3"], "--omega: got 3.0, allowed is none with DIR"),
        (["--burn-in-episodes", "3"], "--burn_in_episodes: got 3, allowed for probe is --episodes"),
        (["--episodes", "0"], "--episodes: got 0, allowed is a whole number from 1"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys):
    assert main(["probe", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
