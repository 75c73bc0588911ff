"""Random input, of fixed seeds: every command ends with a result or with one line, never else."""

import dataclasses
import random
import shutil

import pytest

from eve_acme.cli.main import main
from eve_acme.config import ConfigError, EVEConfig

VALUES = (
    0, 1, -1, 2, 7, 2**31, 10**18, 10**30, 0.0, 0.5, -0.5, 1e-300, 1e300, float("nan"),
    float("inf"), True, False, None, "", "x", "mean", "²", (), (0,), (8,), (8, -1), ("8",), [8], {},
    b"8", object(),
)  # fmt: skip
TEXTS = ("0", "1", "-1", "0.5", "-0.5", "1e300", "nan", "inf", "x", "²", "1_0", "8,8", "8,", " ")
TASKS = (
    "deep_sea/0", "deep_sea:size=5", "deep_sea:size=6,encoding=two_hot", "catch/0", "catch:rows=4",
    "bandit/3", "cartpole/0", "umbrella_length:chain_length=3", "memory_len:memory_length=2",
)  # fmt: skip
LETTERS = "0123456789=:,/_-.² ax\x00\n"
FIELDS = [field.name for field in dataclasses.fields(EVEConfig)]


@pytest.mark.parametrize("seed", range(20))
def test_configs(seed):
    """A config is built, or refused by the name of a field that was given."""
    rng = random.Random(seed)
    for _ in range(100):
        given = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randint(1, 3))}
        try:
            config = EVEConfig(**given)
        except ConfigError as error:
            assert any(name in str(error) for name in given), (given, error)
            assert "\n" not in str(error)
        else:
            assert all(getattr(config, name) == value for name, value in given.items())


def mutated(text, rng):
    """A text with some letters changed, inserted or deleted."""
    letters = list(text)
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(letters) + 1)
        letters[i : i + rng.randint(0, 2)] = rng.choice(("", rng.choice(LETTERS)))
    return "".join(letters)


def check_end(words, capfd):
    """Runs a command; its exit code, which is 0 or 2, and then with one line."""
    code = main(words)
    said = capfd.readouterr().err.splitlines()
    assert code in (0, 2), words
    if code == 2:
        assert said[-1].startswith("eve: ") and "Traceback" not in "".join(said), (words, said)
        assert len(said) == 1, (words, said)
    return code


@pytest.mark.parametrize("seed", range(15))
def test_words(seed, capfd, tmp_path, monkeypatch):
    """Tasks and options, for commands that end before they start anything; none writes."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(seed)
    for _ in range(12):
        task = rng.choice(TASKS)
        task = mutated(task, rng) if rng.random() < 0.6 else task
        options = []
        for name in rng.sample([*FIELDS, "seed", "episodes"], rng.randint(0, 2)):
            options += ["--" + name.replace("_", "-"), rng.choice(TEXTS)]
        check_end([rng.choice(("run", "launch")), task, *options, "--print-config"], capfd)
        assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    words = ["--burn-in-episodes", "1", "--min-replay", "5", "--batches-per-step", "1", "--quiet"]
    command = ["run", "deep_sea:size=4", "--episodes", "3", "--hidden", "8", "--out"]
    assert main([*command, str(directory), *words]) == 0
    return directory


def damage(path, rng):
    """Cuts a file, changes a byte of it, inserts some, or replaces it by others."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        del data[at:]
    elif kind == 1 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randint(1, 9))
    else:
        data = bytearray(rng.randbytes(at % 100))
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(10))
def test_run_folders(seed, finished, capfd, tmp_path):
    """A folder with one damaged file, of those that commands read: read as it is, or refused in
    one line."""
    rng = random.Random(seed)
    for i in range(3):
        run = shutil.copytree(finished, tmp_path / str(i), symlinks=True)
        paths = sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink())
        path = rng.choice([p for p in paths if p.suffix not in (".png", ".html")])
        damage(path, rng)
        for words in (
            ["report", str(run)],
            ["evaluate", str(run), "--episodes", "1"],
            ["probe", str(run)],
            ["run", "--resume", str(run), "--episodes", "4", "--quiet"],
        ):
            code = main(words)
            said = capfd.readouterr().err
            assert code in (0, 2) and "Traceback" not in said, (path, words, said)
            if code == 2:
                assert said.splitlines()[-1].startswith("eve: "), (path, words, said)
