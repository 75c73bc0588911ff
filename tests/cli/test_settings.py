"""`--config FILE` and `--print-config`."""

import importlib.util
import pathlib

import pytest

from eve_acme.cli import main as main_lib
from eve_acme.cli import options
from eve_acme.cli.main import main
from eve_acme.config import PRESETS, EVEConfig
from eve_acme.errors import UsageError

ROOT = pathlib.Path(__file__).parents[2]
TASKS = {
    "cliffwalking": ("gymnasium:CliffWalking-v1,max_episode_steps=200", 300),
    "deep_sea": ("deep_sea:size=20", 10_000),
    "frozenlake": ("gymnasium:FrozenLake-v1", 300),
    "minigrid": ("gymnasium:minigrid:MiniGrid-Empty-5x5-v0", 150),
    "mountaincar": ("gymnasium:MountainCar-v0", 300),
    "paper": ("deep_sea:size=30", 10_000),
    "taxi": ("gymnasium:Taxi-v4", 300),
}


def _plan(*words):
    return options.plan_of(main_lib._parser().parse_args([*words]))


@pytest.mark.parametrize("command", ["run", "launch"])
def test_the_files_of_configs_are_all_known_and_load(command):
    assert {path.stem for path in (ROOT / "configs").glob("*.toml")} == set(TASKS)
    for name, (task, episodes) in TASKS.items():
        if name == "minigrid" and importlib.util.find_spec("minigrid") is None:
            with pytest.raises(UsageError, match="pip install minigrid"):
                _plan(command, "--config", str(ROOT / "configs" / f"{name}.toml"))
            continue
        plan = _plan(command, "--config", str(ROOT / "configs" / f"{name}.toml"))
        assert (plan.task, plan.episodes) == (task, episodes)
        assert plan.stop_when_solved == task.startswith("deep_sea")
        preset = PRESETS["paper"] if name == "paper" else {}
        assert plan.config == EVEConfig(**preset)
        assert plan.label == ("eve paper" if name == "paper" else "eve")


def test_the_command_line_comes_before_the_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(
        'task = "catch/0"\nomega = 3\nhidden = [7, 8]\nzero_output = false\nepisodes = 9\n'
        "stop_when_solved = false\nreplay_megabytes = 12.5\n"
    )
    plan = _plan("run", "deep_sea:size=4", "--config", str(file), "--omega", "5")
    assert (plan.task, plan.episodes, plan.stop_when_solved) == ("deep_sea:size=4", 9, False)
    expected = EVEConfig(omega=5.0, hidden=(7, 8), zero_output=False, replay_megabytes=12.5)
    assert plan.config == expected
    assert _plan("run", f"--config={file}").task == "catch/0"


@pytest.mark.parametrize(
    "words",
    [
        ["deep_sea:size=7", "--preset", "paper", "--hidden", "9", "--omega", "1e-12"],
        ["catch/0", "--agent", "dqn", "--episodes", "5"],
        ["--env", "gymnasium:CliffWalking-v1", "--max-episode-steps", "200", "--engine", "acme"],
    ],
)
def test_what_is_printed_is_read_again(words, tmp_path, capsys):
    assert main(["run", *words, "--print-config"]) == 0
    file = tmp_path / "printed.toml"
    file.write_text(capsys.readouterr().out)
    args = main_lib._parser().parse_args(["run", *words])
    args.task = args.task or args.env
    assert _plan("run", "--config", str(file)) == options.plan_of(args)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "text,message",
    [
        ("omgea = 3", "has 'omgea', allowed is one of"),
        ('out = "x"', "has 'out', allowed is one of"),
        ("[config]\nomega = 3", "has 'config', allowed is one of"),
        ("omega = -3", "omega: got -3.0, allowed is"),
        ('omega = "many"', "argument --omega"),
        ("omega = {a = 1}", "has omega = {'a': 1}, allowed is a number"),
        ("omega = ", "allowed is a TOML file"),
        ('task = "deep_see/0"', "task: got 'deep_see/0'"),
        (None, "allowed is a TOML file"),
    ],
)
@pytest.mark.parametrize("command", ["run", "launch"])
def test_a_bad_file_is_one_line(command, text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "a.toml").write_text(text)
    assert main([command, "--config", "a.toml"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error
    assert [path.name for path in tmp_path.iterdir()] == ([] if text is None else ["a.toml"])
