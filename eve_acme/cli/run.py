"""`eve run`: trains one agent on one task in this process, and shows the result."""

import argparse
import pathlib
import signal
import sys
import time
from typing import Any

from eve_acme.cli import options, outcome, settings
from eve_acme.embedded.loop import Loop
from eve_acme.errors import Diverged, InputError, UsageError
from eve_acme.experiments import (
    boards,
    checkpoint,
    devices,
    engines,
    output,
    packages,
    plots,
    run_page,
    tasks,
)
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.baselines import NAMES
from eve_acme.experiments.folder import locked
from eve_acme.experiments.live import LiveFiles
from eve_acme.experiments.plan import Plan
from eve_acme.experiments.progress import Progress
from eve_acme.experiments.recorder import Recorder
from eve_acme.files import write_sealed_json
from eve_acme.types import ReplayFull

CHECKPOINT_SECONDS = 600.0
EXAMPLES = """examples:
  eve run                                   Deep Sea 10x10 until it is solved
  eve run deep_sea/10 --episodes 10000 --seed 3 --out DIR
  eve run deep_sea:size=50
  eve run deep_sea:size=20 --agent dqn
  eve run --env gymnasium:CartPole-v1 --episodes 300
  eve run --config configs/taxi.toml --seed 1
  eve run --resume DIR
"""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "run",
        help="train on a bsuite task and show the result",
        description="Trains one agent on one task, in this process. Writes config.json,\n"
        "results.csv, episodes.csv, metrics.csv, summary.json, curve.png, a page with all results\n"
        "(index.html; 'eve watch DIR' serves it during the run) and a checkpoint to DIR.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task",
        nargs="?",
        help="a bsuite id such as deep_sea/10, or settings such as deep_sea:size=30 "
        "(default: deep_sea/0, the 10x10 Deep Sea)",
    )
    parser.add_argument(
        "--env",
        help="instead of TASK, any environment with discrete actions: gymnasium:ID, gym:ID, or "
        "package.module:function that returns an environment of dm_env or Gymnasium",
    )
    parser.add_argument(
        "--agent", choices=("eve", *NAMES), help="eve (default), or a baseline of bsuite's"
    )
    parser.add_argument(
        "--engine",
        choices=("embedded", "acme"),
        help="embedded (default): lock-step, in memory; acme: Acme's components and Reverb",
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write metrics to DIR/tensorboard"
    )
    parser.add_argument("--wandb", action="store_true", help="also log metrics to Weights & Biases")
    options.add_run(
        parser,
        out="runs/TASK-AGENT-seedSEED",
        resume="continue the run in DIR (bit-exactly with the embedded engine); --episodes and "
        "--replay-megabytes may be changed",
        device="this process",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.env is not None:
        if args.task is not None:
            raise UsageError(f"--env: got {args.env!r}, allowed is none with TASK {args.task!r}")
        args.task = args.env
    if args.resume is None:
        plan = options.plan_of(args)
        if args.print_config:
            print(settings.text(plan, args.preset), end="")
            return 0
        name = f"{plan_lib.folder_name(plan.task)}-{plan.agent}-seed{plan.seed}"
        directory = plan_lib.new_directory(args.out, f"runs/{name}")
    else:
        directory = pathlib.Path(args.resume)
        plan = options.resumed_plan(args, directory)
    for option, package in (("tensorboard", "tensorflow"), ("wandb", "wandb")):
        if getattr(args, option):
            packages.require(f"--{option}", package)
    if args.learner_device is not None:
        devices.use(args.learner_device)
    engine = engines.make(plan)
    try:
        if args.resume is None:
            recorder = Recorder(tasks.parse(plan.task))
        else:
            recorder = checkpoint.read(directory, engine, plan.identity)
        return _Run(plan, directory, engine, recorder, args).train(args.quiet)
    except Diverged as error:
        good = directory / checkpoint.LINK
        message = checkpoint.keep_batch(error, directory, good if good.exists() else None)
        print(f"eve: {message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        how = f"eve run --resume {directory}"
        raise plan_lib.cannot_write(directory, error, how) from None
    finally:
        engine.close()


class _Run:
    """Steps an engine until the run ends, and writes the run's files."""

    def __init__(
        self,
        plan: Plan,
        directory: pathlib.Path,
        engine: Loop,
        recorder: Recorder,
        args: argparse.Namespace,
    ):
        self._plan = plan
        self._directory = directory
        self._engine = engine
        self._recorder = recorder
        self._signal: int | None = None
        self._tensorboard, self._wandb = args.tensorboard, args.wandb
        self._loggers: list[Any] = []

    def train(self, quiet: bool) -> int:
        """Plays until done, solved or interrupted; writes the files; returns the exit code."""
        handlers = {s: signal.signal(s, self._interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
        full = None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with locked(self._directory):
                write_sealed_json(self._directory / "config.json", self._plan.describe())
                # Removes a stale summary: summary.json always describes the run's last end.
                (self._directory / "summary.json").unlink(missing_ok=True)
                try:
                    try:
                        self._play(quiet)
                    except ReplayFull as error:
                        full = error
                    self._checkpoint()  # Checks the last losses before writing the summary.
                except (InputError, Diverged):
                    self._recorder.write_results(self._directory, self._engine.environment)
                    raise
                self._write()
        finally:
            for logger in self._loggers:
                logger.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if full is not None:
            resumable = (self._directory / checkpoint.LINK).exists()
            how = f"eve run --resume {self._directory}" if resumable else "a new run"
            raise UsageError(f"{full}; with more room, continue by {how}")
        return 0 if self._signal is None else 128 + self._signal

    def _play(self, quiet: bool) -> None:
        self._loggers = self._open_loggers()
        saved = start = time.monotonic()
        before = self._recorder.wall_seconds
        live = LiveFiles(self._directory, self._recorder, self._engine)
        last = None
        with Progress(self._recorder, self._plan.episodes, quiet) as progress:
            while not self._finished and not self._interrupted:
                episode = self._engine.step()
                now = time.monotonic()
                self._recorder.wall_seconds = before + now - start
                if episode is not None:
                    self._recorder.episode(episode.length, episode.total, self._engine.environment)
                    last = episode
                    live.update(episode, now)
                    for logger in self._loggers:
                        logger.write(self._engine.report(episode))
                progress.update(self._engine.env_steps, now)
                if episode is None:
                    continue
                if progress.unread and self._signal is None:
                    self._signal = signal.SIGPIPE
                if now - saved > CHECKPOINT_SECONDS:
                    self._checkpoint()
                    saved = time.monotonic()
        if last is not None:
            live.write(last)

    def _open_loggers(self) -> list[Any]:
        loggers: list[Any] = []
        if self._tensorboard:
            loggers.append(boards.TensorBoard(self._directory / "tensorboard"))
        if self._wandb:
            plan = self._plan.describe()
            loggers.append(boards.WeightsAndBiases(self._title, plan, self._directory))
        return loggers

    @property
    def _title(self) -> str:
        return f"{self._plan.label} on {self._plan.task}, seed {self._plan.seed}"

    @property
    def _finished(self) -> bool:
        solved = self._recorder.solved["solved_episode_20"] is not None
        done = len(self._recorder.returns) >= self._plan.episodes
        return done or (self._plan.stop_when_solved and solved)

    @property
    def _interrupted(self) -> bool:
        return self._signal is not None and (self._engine.can_save or not self._engine.saves)

    def _interrupt(self, number: int, frame: Any) -> None:
        del frame
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number
        output.say("\nstopping at the next step that can be saved (press again to stop at once)")

    def _checkpoint(self) -> None:
        if self._engine.can_save:
            try:
                belongs = self._plan.identity
                checkpoint.write(self._directory, self._engine, self._recorder, belongs)
            except checkpoint.CannotSave as error:
                output.say(f"eve: {error}")

    def _write(self) -> None:
        plan, recorder, engine = self._plan, self._recorder, self._engine
        seconds = recorder.wall_seconds
        summary = dict(
            task=plan.task,
            engine=plan.engine,
            agent=plan.agent,
            label=plan.label,
            seed=plan.seed,
            finished=self._finished,
            env_steps=engine.env_steps,
            learner_updates=engine.learner_updates,
            n=engine.n,
            parameters=engine.parameters,
            wall_seconds=round(seconds, 3),
            env_steps_per_second=round(engine.env_steps / max(seconds, 1e-9), 1),
            **recorder.summary(),
        )
        if plan.agent == "eve":
            counts = engines.parameter_counts(plan, engine.environment)
            summary["parameters_by_first_layer"] = counts
        recorder.write_results(self._directory, engine.environment)
        write_sealed_json(self._directory / "summary.json", summary)
        if recorder.returns:
            plots.write_curve(self._directory / "curve.png", recorder, self._title)
        run_page.write(self._directory)
        outcome.show(self._title, summary, self._directory)
        if (self._directory / checkpoint.LINK).exists():
            print(f"  continue: eve run --resume {self._directory} --episodes N")
