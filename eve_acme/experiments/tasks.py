"""Tasks by name: bsuite's ids (`deep_sea/10`) and settings (`deep_sea:size=30`), and environments
from outside bsuite (`gymnasium:CartPole-v1`, `package.module:function`; see `external`)."""

import contextlib
import functools
import inspect
from typing import Any, NamedTuple

import dm_env
import numpy as np

from eve_acme.environments.checks import TimestepCheck
from eve_acme.environments.wrappers import OneHotAsIndex, Rotated, TwoHot
from eve_acme.errors import UsageError
from eve_acme.experiments import external, limits, literals

DEEP_SEA = ("deep_sea", "deep_sea_stochastic")
DEEP_SEA_SIZES = (2, 200)
ENCODINGS = {
    "index": OneHotAsIndex,
    "raw": lambda environment: environment,
    "rotated": Rotated,
    "two_hot": TwoHot,
}
"""Encodings of Deep Sea's observations. The learner computes the same from bsuite's own
observation (`raw`) as from the index, at about the same speed."""
EXTERNAL = "external"
TRIAL_STEPS = 10_000


class Task(NamedTuple):
    """A bsuite experiment with its settings, or an environment from outside bsuite.

    Attributes:
      name: as the user wrote it.
      experiment: bsuite's name of the experiment; EXTERNAL for others.
      settings: keyword arguments of bsuite's loader.
      bsuite_id: the id in bsuite's sweep with exactly these settings, if there is one.
      episodes: bsuite's number of episodes.
      encoding: encoding of a Deep Sea's observations, a key of `ENCODINGS`.
    """

    name: str
    experiment: str
    settings: dict[str, Any]
    bsuite_id: str | None
    episodes: int
    encoding: str = "index"

    @property
    def is_deep_sea(self) -> bool:
        return self.experiment in DEEP_SEA


def parse(name: str) -> Task:
    """Parses a task's name; raises UsageError."""
    from bsuite import bsuite, sweep

    experiment, separator, rest = name.partition("/" if "/" in name else ":")
    if experiment not in bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT:
        if external.is_external(name):
            return Task(name, EXTERNAL, {"environment": name}, None, external.EPISODES)
        known = ", ".join(bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT)
        raise UsageError(
            f"task: got {name!r}, allowed is gymnasium:ID, MODULE:FUNCTION, or EXPERIMENT/INDEX "
            f"with EXPERIMENT of {known}"
        )
    ids = [i for i in sweep.SWEEP if i.startswith(experiment + sweep.SEPARATOR)]
    settings: dict[str, Any]
    bsuite_id: str | None
    encoding = "index"
    if separator == "/":
        if name not in ids:
            raise UsageError(f"task: got {name!r}, allowed is {ids[0]} to {ids[-1]}")
        settings, bsuite_id = dict(sweep.SETTINGS[name]), name
    else:
        given = _settings(name, experiment, rest)
        encoding = given.pop("encoding", encoding)
        settings = {**sweep.SETTINGS[ids[0]], **given}
        same = [i for i in ids if dict(sweep.SETTINGS[i]) == settings]
        bsuite_id = same[0] if same else None
    if experiment in DEEP_SEA:
        _check_size(settings["size"])
    return Task(name, experiment, settings, bsuite_id, sweep.EPISODES[ids[0]], encoding)


def load(task: Task, seed: int) -> dm_env.Environment:
    """Loads the task's raw environment, with all its random generators seeded."""
    from bsuite import bsuite

    if task.experiment == EXTERNAL:
        return external.load(task.name, seed)
    with external.guarded(f"task: {task.name!r}", "settings that bsuite can load"):
        environment = bsuite.load(task.experiment, task.settings)
    _seed(environment, seed)
    make_picklable(environment)
    return environment


@functools.lru_cache(maxsize=64)
def try_out(name: str) -> None:
    """Builds and steps a task's environment once, within bounds of time and memory.

    Skips bsuite's ids, which are known to work. With settings of bsuite, an episode must end. An
    environment from outside bsuite takes only two steps, since its episodes may have any length.

    Raises:
      UsageError: the environment cannot be built, returns an invalid timestep, or an episode does
        not end.
    """
    task = parse(name)
    if task.bsuite_id is not None:
        return
    if task.is_deep_sea:
        load(task, seed=0)  # The size bounds its episodes.
        return
    outside = task.experiment == EXTERNAL
    allowed = "a step" if outside else "settings that bsuite can play"
    with external.guarded(f"task: {name!r}", allowed), limits.trial():
        ended = _play(load(task, seed=0), 2 if outside else TRIAL_STEPS)
    if not ended and not outside:
        raise UsageError(
            f"task: got {name!r}, whose episode has no end within {TRIAL_STEPS} steps; allowed "
            "are settings with shorter ones"
        )


def _play(environment: dm_env.Environment, steps: int) -> bool:
    """Plays one episode of random actions; returns whether it ended within `steps` steps."""
    check = TimestepCheck(environment.observation_spec())
    rng = np.random.default_rng(0)
    check(environment.reset(), 0, first=True)
    for step in range(1, steps + 1):
        timestep = environment.step(int(rng.integers(environment.action_spec().num_values)))
        check(timestep, step, first=False)
        if timestep.last():
            return True
    return False


def make_picklable(environment: Any) -> None:
    """Repairs bsuite's wrappers, whose `__getattr__` recurses infinitely during unpickling."""
    while environment is not None:
        kind = type(environment)
        if hasattr(kind, "__getattr__") and not hasattr(kind, "__setstate__"):
            setattr(kind, "__setstate__", _set_state)  # noqa: B010
        environment = vars(environment).get("_env")


def compact(task: Task, environment: dm_env.Environment) -> dm_env.Environment:
    """Wraps a Deep Sea so that its observations have the task's encoding. The default, the index of
    the state, takes few bytes to send."""
    return ENCODINGS[task.encoding](environment) if task.is_deep_sea else environment


def _set_state(self: Any, state: dict[str, Any]) -> None:
    self.__dict__.update(state)


def _settings(name: str, experiment: str, text: str) -> dict[str, Any]:
    """Parses `size=30,mapping_seed=1`, and checks it against the loader's signature."""
    from bsuite import bsuite

    loader = bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]
    allowed = [p for p in inspect.signature(loader).parameters if p != "self"]
    if experiment in DEEP_SEA:
        allowed.append("encoding")
    settings: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        field, separator, value = part.partition("=")
        if not separator or field not in allowed:
            raise UsageError(
                f"task: got {name!r}, allowed after {experiment}: is FIELD=VALUE, "
                f"with FIELD of {', '.join(allowed)}"
            )
        if field in settings:
            raise UsageError(f"task: got {name!r}, allowed is {field} once")
        if field == "encoding":
            if value not in ENCODINGS:
                known = ", ".join(ENCODINGS)
                raise UsageError(f"task: encoding got {value!r}, allowed is one of {known}")
            settings[field] = value
            continue
        for parse_number in (literals.number, literals.whole):
            with contextlib.suppress(ValueError):
                settings[field] = parse_number(value)
        if field not in settings:
            raise UsageError(f"task: {field} got {value!r}, allowed is a finite number")
    return settings


def _check_size(size: Any) -> None:
    least, most = DEEP_SEA_SIZES
    if not isinstance(size, int) or isinstance(size, bool) or not least <= size <= most:
        raise UsageError(
            f"task: size got {size!r}, allowed is a whole number from {least} to {most}"
        )


def _seed(environment: Any, seed: int) -> None:
    """Seeds every generator of a bsuite environment; bsuite's loaders seed few of them."""
    sequence = np.random.SeedSequence([seed, 0xB5])
    while environment is not None:
        for value in vars(environment).values():
            if isinstance(value, np.random.RandomState):
                value.seed(sequence.spawn(1)[0].generate_state(1)[0])
        environment = vars(environment).get("_env")
