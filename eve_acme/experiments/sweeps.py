"""The specification of a sweep (agents, settings, tasks and seeds), and its runs."""

import dataclasses
import itertools
import json
from typing import Any

from eve_acme.config import PRESETS
from eve_acme.errors import UsageError
from eve_acme.files import read_toml

AGENTS = ("eve", "dqn", "boot_dqn", "random")
MOST_SEEDS = 10_000
_FIELDS = ("tasks", "agents", "settings", "seeds", "options")


@dataclasses.dataclass(frozen=True)
class Spec:
    """A sweep.

    Attributes:
      tasks: names of tasks, and of sets of tasks.
      agents: names from `AGENTS`.
      settings: settings of EVE: presets and FIELD=VALUE, joined by '+', such as 'paper+omega=1'.
      seeds: seeds of the runs.
      options: further arguments of `eve run`, shared by all runs.
    """

    tasks: tuple[str, ...]
    agents: tuple[str, ...] = ("eve",)
    settings: tuple[str, ...] = ("default",)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tasks", "agents", "settings", "seeds"):
            values = getattr(self, name)
            twice = sorted({value for value in values if values.count(value) > 1}, key=str)
            if twice:
                raise UsageError(f"{name}: got {twice[0]!r} twice, allowed is each once")
            if not values:
                raise UsageError(f"{name}: got none, allowed is one or more")
        for agent in self.agents:
            if agent not in AGENTS:
                raise UsageError(f"agents: got {agent!r}, allowed is {', '.join(AGENTS)}")
        for word in self.options:
            if word.split("=")[0] in ("--out", "--seed", "--resume", "--agent", "--preset"):
                raise UsageError(f"--: got {word}, allowed are options that all runs may share")

    def commands(self) -> list[list[str]]:
        """Returns the arguments of `eve` for every run, task by task, so that tasks complete."""
        runs = []
        for task, seed, agent in itertools.product(self._tasks(), self.seeds, self.agents):
            shared = ["run", task, "--seed", str(seed)]
            if agent != "eve":
                runs.append([*shared, "--agent", agent, *_without_config(self.options)])
                continue
            runs += [[*shared, *_options(setting), *self.options] for setting in self.settings]
        return runs

    def _tasks(self) -> list[str]:
        names = [name for task in self.tasks for name in task_set(task)]
        return list(dict.fromkeys(names))


def task_set(name: str) -> list[str]:
    """Returns the tasks of a set; a name that is not a set's stands for itself."""
    from bsuite import sweep

    experiments: dict[str, list[str]] = {}
    for i in sweep.SWEEP:
        experiments.setdefault(i.split(sweep.SEPARATOR)[0], []).append(i)
    sets = {
        **experiments,
        "exploration": [
            i
            for experiment in ("deep_sea", "deep_sea_stochastic", "cartpole_swingup")
            for i in experiments[experiment]
        ],
        "bsuite": list(sweep.SWEEP),
        "bsuite-lite": [i for ids in experiments.values() for i in ids[::4]],
        "encodings": [
            f"deep_sea:size={size},encoding={encoding}"
            for size in (10, 20, 30)
            for encoding in ("raw", "rotated", "two_hot")
        ],
    }
    return sets.get(name, [name])


def _options(setting: str) -> list[str]:
    words = []
    for part in setting.split("+"):
        field, given, value = part.partition("=")
        if given and field and value:
            words += [f"--{field.replace('_', '-')}", value]
        elif part in PRESETS:
            words += ["--preset", part]
        else:
            known = ", ".join(PRESETS)
            raise UsageError(f"settings: got {part!r}, allowed is FIELD=VALUE or one of {known}")
    return words


def _without_config(options: tuple[str, ...]) -> list[str]:
    """Keeps the shared options that bsuite's agents accept: the length of a run."""
    words: list[str] = []
    for i, word in enumerate(options):
        if word == "--episodes":
            words += options[i : i + 2]
        elif word.startswith("--episodes=") or word == "--stop-when-solved":
            words.append(word)
    return words


def seeds_of(text: str) -> tuple[int, ...]:
    """Parses seeds such as `0-4` or `0,3`; raises UsageError."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            if not all(word.isascii() and word.isdigit() for word in (first, last or first)):
                raise ValueError
            span = range(int(first), int(last or first) + 1)
            if not span or len(seeds) + len(span) > MOST_SEEDS:
                raise ValueError
            seeds += span
    except ValueError:
        raise UsageError(
            f"--seeds: got {text!r}, allowed is such as 0-4 or 0,3, at most {MOST_SEEDS}"
        ) from None
    return tuple(seeds)


def from_file(path: str) -> Spec:
    """Reads a sweep from a TOML file; raises UsageError."""
    values: dict[str, Any] = {}
    for name, value in read_toml("FILE", path).items():
        if name not in _FIELDS:
            raise UsageError(f"{path}: got {name!r}, allowed is one of {', '.join(_FIELDS)}")
        if name == "seeds" and isinstance(value, str):
            values[name] = seeds_of(value)
            continue
        kind = int if name == "seeds" else str
        if not isinstance(value, list) or any(type(entry) is not kind for entry in value):
            raise UsageError(f"{path}: {name} got {value!r}, allowed is a list")
        values[name] = tuple(value)
    if "tasks" not in values:
        raise UsageError(f"{path}: tasks is missing, allowed is one or more")
    return Spec(**values)


def slurm(words: str, runs: int) -> str:
    """Returns a Slurm array script, with one run for each index.

    Args:
      words: the command line of the sweep.
      runs: number of its runs.
    """
    return f"""#!/usr/bin/env bash
#SBATCH --job-name=eve-sweep
#SBATCH --array=0-{runs - 1}
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --output=eve-sweep-%a.log
set -euo pipefail
# An index that is given again, after a time limit or a failure, resumes its run.
exec {words} --jobs 1 --only "$SLURM_ARRAY_TASK_ID"
"""


def kubernetes(words: str, runs: int, image: str) -> str:
    """Returns a Kubernetes indexed Job as JSON; DIR must be on a volume that all pods share.

    Args:
      words: the command line of the sweep.
      runs: number of its runs.
      image: the container image.
    """
    container = dict(
        name="run",
        image=image,
        command=["sh", "-c", f'exec {words} --jobs 1 --only "$JOB_COMPLETION_INDEX"'],
        resources=dict(requests=dict(cpu="1", memory="4Gi"), limits=dict(memory="4Gi")),
        volumeMounts=[dict(name="results", mountPath="/results")],
    )
    claim = dict(name="results", persistentVolumeClaim=dict(claimName="eve-results"))
    job = dict(
        apiVersion="batch/v1",
        kind="Job",
        metadata=dict(name="eve-sweep"),
        spec=dict(
            completionMode="Indexed",
            completions=runs,
            parallelism=min(runs, 64),
            backoffLimit=3 * runs,
            template=dict(
                spec=dict(restartPolicy="OnFailure", containers=[container], volumes=[claim])
            ),
        ),
    )
    return json.dumps(job, indent=2) + "\n"
