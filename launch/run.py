"""`eve run`: train one agent on one task in this process, and show what came of it."""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import signal
import sys
import time
from importlib import metadata
from typing import Any

from eve_acme import config as config_lib
from eve_acme.launch import checkpoint, options, plots, tasks
from eve_acme.launch.baselines import NAMES, BaselineEngine
from eve_acme.launch.errors import UsageError
from eve_acme.launch.progress import Progress
from eve_acme.launch.recorder import Recorder, RowLogger, write_json
from eve_acme.types import ReplayFull

PACKAGES = ("jax", "jaxlib", "dm-haiku", "optax", "numpy", "bsuite", "dm-acme", "dm-reverb")
FREE_MEGABYTES = 200
CHECKPOINT_SECONDS = 600.0


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "run",
        help="train on a bsuite task and show the result",
        description="Trains one agent on one bsuite task, in this process, and writes config.json, "
        "results.csv, summary.json, curve.png and a checkpoint to DIR.",
        epilog="examples:  eve run    |    eve run deep_sea/10 --episodes 10000 --seed 3 --out DIR"
        "    |    eve run deep_sea:size=50    |    eve run deep_sea/5 --agent dqn    |    "
        "eve run --resume DIR",
    )
    parser.add_argument(
        "task",
        nargs="?",
        help="a bsuite id such as deep_sea/10, or settings such as deep_sea:size=30 "
        "(default: deep_sea/0, the 10x10 Deep Sea)",
    )
    parser.add_argument("--agent", choices=("eve", *NAMES), help="others than eve are bsuite's")
    parser.add_argument(
        "--engine", choices=("embedded", "acme"), help="lock-step in memory, or Acme with Reverb"
    )
    parser.add_argument("--seed", type=int, help="of agent and environment (default: 0)")
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="how many to play (default: Deep Sea until solved, others as many as bsuite plays)",
    )
    parser.add_argument(
        "--stop-when-solved", action="store_true", help="end a Deep Sea run at the 20%% threshold"
    )
    parser.add_argument("--out", metavar="DIR", help="default: runs/TASK-AGENT-seedSEED")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run of DIR, bit-exactly")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options.add_config(parser)
    parser.set_defaults(command=run)


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that decides a run; what config.json holds."""

    task: str
    agent: str
    engine: str
    seed: int
    label: str
    config: config_lib.EVEConfig


def run(args: argparse.Namespace) -> int:
    """The command; gives the exit code."""
    if args.resume is None:
        plan = _plan(args)
        directory = _new_directory(args, plan)
    else:
        directory = pathlib.Path(args.resume)
        plan = _resumed_plan(args, directory)
    task = tasks.parse(plan.task)
    episodes = task.episodes if args.episodes is None else args.episodes
    if episodes < 1:
        raise UsageError(f"--episodes: got {episodes}, allowed is a whole number from 1")
    stop_when_solved = args.stop_when_solved or (args.episodes is None and task.is_deep_sea)
    raw = _environment(task, plan.seed)
    engine = _engine(plan, task, raw, episodes)
    try:
        if args.resume is None:
            recorder = Recorder(task)
            _make(directory)
            write_json(directory / "config.json", _describe(plan))
        else:
            recorder = checkpoint.read(directory, engine)
        run = _Run(plan, directory, engine, recorder, episodes, stop_when_solved)
        return run.train(args.quiet)
    finally:
        engine.close()


class _Run:
    """The loop around an engine, and the files that it leaves."""

    def __init__(
        self,
        plan: Plan,
        directory: pathlib.Path,
        engine: Any,
        recorder: Recorder,
        episodes: int,
        stop_when_solved: bool,
    ):
        self._plan = plan
        self._directory = directory
        self._engine = engine
        self._recorder = recorder
        self._episodes = episodes
        self._stop_when_solved = stop_when_solved
        self._signal: int | None = None

    def train(self, quiet: bool) -> int:
        """Plays until done, solved or interrupted, and writes; gives the exit code."""
        handlers = {s: signal.signal(s, self._interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
        start, steps, full = time.monotonic(), self._engine.env_steps, None
        try:
            try:
                self._play(quiet)
            except ReplayFull as error:
                full = error
            seconds = time.monotonic() - start
            self._write(seconds, (self._engine.env_steps - steps) / max(seconds, 1e-9))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if full is not None:
            raise UsageError(f"{full} (what was learnt until then is in {self._directory})")
        return 0 if self._signal is None else 128 + self._signal

    def _play(self, quiet: bool) -> None:
        saved = time.monotonic()
        with Progress(self._recorder, self._episodes, quiet) as progress:
            while not self._done():
                episode = self._engine.step()
                if episode is None:
                    continue
                self._recorder.episode(episode.length, episode.total, self._engine.environment)
                progress.update(self._engine.env_steps)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self._checkpoint()
                    saved = time.monotonic()

    def _done(self) -> bool:
        solved = self._recorder.solved["solved_episode_20"] is not None
        return (
            (self._signal is not None and getattr(self._engine, "can_save", True))
            or len(self._recorder.returns) >= self._episodes
            or (self._stop_when_solved and solved)
        )

    def _interrupt(self, number: int, frame: Any) -> None:
        del frame
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number
        print("\nstopping after this step (again: at once)", file=sys.stderr)

    def _checkpoint(self) -> None:
        if hasattr(self._engine, "save") and self._engine.can_save:
            checkpoint.write(self._directory, self._engine, self._recorder)

    def _write(self, seconds: float, steps_per_second: float) -> None:
        plan, recorder, engine = self._plan, self._recorder, self._engine
        self._checkpoint()
        rows = engine.environment.logged_rows
        recorder.write_results(self._directory, rows, engine.environment)
        summary = dict(
            task=plan.task,
            engine=plan.engine,
            agent=plan.agent,
            label=plan.label,
            seed=plan.seed,
            env_steps=engine.env_steps,
            learner_updates=engine.learner_updates,
            n=engine.n,
            parameters=engine.parameters,
            wall_seconds=round(seconds, 3),
            env_steps_per_second=round(steps_per_second, 1),
            **recorder.summary(),
        )
        if plan.agent == "eve":
            summary["parameters_by_first_layer"] = _parameter_counts(plan, engine.environment)
        write_json(self._directory / "summary.json", summary)
        title = f"{plan.label} on {plan.task}, seed {plan.seed}"
        if recorder.returns:
            plots.write_curve(self._directory / "curve.png", recorder, title)
        _show(title, summary, self._directory, hasattr(engine, "save"))


def _plan(args: argparse.Namespace) -> Plan:
    task = tasks.parse(args.task or "deep_sea/0")
    agent = args.agent or "eve"
    engine = args.engine or "embedded"
    if agent != "eve":
        if args.engine is not None:
            raise UsageError(f"--engine: got {engine!r}, allowed with --agent eve alone")
        engine = "bsuite"
    seed = 0 if args.seed is None else args.seed
    if not 0 <= seed < 2**31:
        raise UsageError(f"--seed: got {seed}, allowed is a whole number from 0 to {2**31 - 1}")
    label = agent if args.preset == "default" else f"{agent} {args.preset}"
    return Plan(task.name, agent, engine, seed, label, options.config_of(args))


def _resumed_plan(args: argparse.Namespace, directory: pathlib.Path) -> Plan:
    try:
        saved = json.loads((directory / "config.json").read_text())
        values = {field.name: saved[field.name] for field in dataclasses.fields(Plan)}
        plan = Plan(**{**values, "config": config_lib.from_dict(values["config"])})
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(
            f"--resume: got {args.resume!r}, allowed is the DIR of an earlier run ({error})"
        ) from None
    if plan.agent != "eve":
        raise UsageError(f"--resume: got a run of {plan.agent!r}, allowed is one of eve")
    if args.out is not None:
        raise UsageError(f"--out: got {args.out!r}, allowed is none with --resume")
    asked = {name: getattr(args, name) for name in ("task", "agent", "engine", "seed")}
    asked |= options.given(args)
    have = {**dataclasses.asdict(plan), **dataclasses.asdict(plan.config)}
    for name, value in asked.items():
        if value is not None and value != have[name]:
            raise UsageError(f"{name}: got {value!r}, allowed is {have[name]!r} as in --resume DIR")
    return plan


def _new_directory(args: argparse.Namespace, plan: Plan) -> pathlib.Path:
    if args.out is not None:
        directory = pathlib.Path(args.out)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(
                f"--out: got {args.out!r}, which is not empty; allowed is a new or empty folder "
                "(or --resume it)"
            )
    else:
        name = plan.task.replace("/", "-").replace(":", "-").replace("=", "").replace(",", "-")
        stem = f"{name}-{plan.agent}-seed{plan.seed}"
        directory, number = pathlib.Path("runs") / stem, 2
        while directory.exists():
            directory, number = pathlib.Path("runs") / f"{stem}-{number}", number + 1
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(
            f"--out: got {str(directory)!r}, allowed is a folder that can be made (not in {place})"
        )
    free = shutil.disk_usage(place).free / 2**20
    if free < FREE_MEGABYTES:
        raise UsageError(
            f"--out: got {str(directory)!r} with {free:.0f} MB free, allowed is a place with "
            f"{FREE_MEGABYTES} MB or more"
        )
    return directory


def _make(directory: pathlib.Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out: got {str(directory)!r}, allowed is a folder that can be made ({error})"
        ) from None


def _environment(task: tasks.Task, seed: int) -> Any:
    """bsuite's environment in bsuite's own logging wrapper, which keeps rows on its grid."""
    from bsuite.utils import wrappers

    logger = RowLogger()
    raw = tasks.load(task, seed)
    raw.logged_rows = logger.rows
    environment = wrappers.Logging(raw, logger)
    tasks.make_picklable(environment)
    return environment


def _engine(plan: Plan, task: tasks.Task, raw: Any, episodes: int) -> Any:
    if plan.agent != "eve":
        return BaselineEngine(plan.agent, raw, plan.seed)
    from eve_acme.networks import make_networks

    environment = tasks.compact(task, raw)
    network = make_networks(_specs(environment), plan.config)
    try:
        if plan.engine == "acme":
            from eve_acme.agent.run import AcmeEngine

            return AcmeEngine(environment, network, plan.config, plan.seed)
        from eve_acme.embedded import Engine

        engine = Engine(environment, network, plan.config, plan.seed)
        if task.is_deep_sea:
            engine.replay.check(episodes * task.settings["size"])
        return engine
    except ReplayFull as error:
        raise UsageError(str(error)) from None


def _specs(environment: Any) -> Any:
    return argparse.Namespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )


def _parameter_counts(plan: Plan, environment: Any) -> dict[str, int]:
    import jax

    from eve_acme.networks import make_networks, num_parameters

    counts = {}
    for form in config_lib.CHOICES["first_layer"]:
        config = dataclasses.replace(plan.config, first_layer=form)
        network = make_networks(_specs(environment), config)
        counts[form] = num_parameters(jax.eval_shape(network.init, jax.random.PRNGKey(0)))
    return counts


def _describe(plan: Plan) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "eve-acme": _version("eve-acme")}
    return {**dataclasses.asdict(plan), "versions": versions | {p: _version(p) for p in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _show(title: str, summary: dict[str, Any], directory: pathlib.Path, resumable: bool) -> None:
    def episode(value: int | None) -> str:
        return "not solved" if value is None else f"solved at episode {value}"

    print(f"{title}: {summary['episodes']} episodes, {summary['env_steps']} steps")
    if summary["final_mean_return"] is not None:
        print(f"  mean return of the last 100 episodes: {summary['final_mean_return']:.3f}")
    if summary["bad_episode_fraction"] is not None:
        print(f"  treasure in {summary['good_episode_fraction']:.1%} of all episodes")
        print(f"  20 % good episodes (paper's threshold):  {episode(summary['solved_episode_20'])}")
        print(f"  10 % good episodes (bsuite's threshold): {episode(summary['solved_episode_10'])}")
    print(f"  {summary['env_steps_per_second']:.0f} environment steps a second")
    print(f"  files: {directory}/ (summary.json, curve.png, results.csv, config.json)")
    if resumable:
        print(f"  go on: eve run --resume {directory} --episodes N")
