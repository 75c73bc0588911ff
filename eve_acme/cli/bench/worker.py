"""One contender in its own process, with its own threads, core affinity and memory.

The process reads one JSON object per line, and answers each with one. `{"steps": N}` takes N
environment steps with their learning, and returns their cost. `{"parts": REPEATS}` returns the time
of each part of EVE.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

from eve_acme.cli.main import RUNTIME
from eve_acme.errors import UsageError

WARM_UP_STEPS = 200
"""Steps after which all agents learn: their replays start at 100 or 128 steps."""

CONTENDERS: dict[str, dict[str, str]] = {
    "eve": dict(agent="eve", preset="default", label="EVE"),
    "paper": dict(agent="eve", preset="paper", label="EVE, preset paper"),
    "dqn_equivalent": dict(agent="eve", preset="dqn_equivalent", label="DQN-equivalent"),
    "dqn": dict(agent="dqn", label="bsuite's DQN"),
    "boot_dqn": dict(agent="boot_dqn", label="bsuite's Bootstrapped DQN"),
}
"""EVE and its presets on the embedded engine, and bsuite's unmodified agents."""


class Worker:
    """The parent's handle to a contender's process."""

    def __init__(self, name: str, task: str, cores: list[int]):
        request = json.dumps(dict(name=name, task=task, cores=cores))
        environment = dict(os.environ)
        if CONTENDERS[name]["agent"] != "eve":
            for name in RUNTIME:  # bsuite's agents run as shipped.
                environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()", request],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            self.about = self._read()
        except BaseException:  # Ctrl-C too: no caller can close the process yet.
            self.close()
            raise

    def ask(self, **question: Any) -> dict[str, Any]:
        """Sends one question; returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UsageError(
                f"--tasks: got one at which a contender ended with exit code "
                f"{self._process.wait()}, allowed is one that it can learn"
            )
        return json.loads(line)

    def close(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.communicate()


def make_engine(name: str, task: str) -> Any:
    """Makes the contender's engine; EVE has no random episodes, in which acting costs nothing."""
    from eve_acme.config import PRESETS, EVEConfig
    from eve_acme.experiments import engines
    from eve_acme.experiments.plan import Plan

    contender = CONTENDERS[name]
    settings = {**PRESETS[contender.get("preset", "default")], "burn_in_episodes": 0}
    return engines.make(
        Plan(
            task=task,
            agent=contender["agent"],
            engine="embedded" if contender["agent"] == "eve" else "bsuite",
            seed=0,
            label=contender["label"],
            episodes=1,
            stop_when_solved=False,
            config=EVEConfig(**settings),
        )
    )


def samples_per_step(engine: Any) -> int:
    """Returns the sampled transitions per environment step, over all members of an ensemble."""
    if hasattr(engine, "config"):
        return engine.config.samples_per_insert
    agent = engine._agent
    return agent._batch_size * getattr(agent, "_num_ensemble", 1) // agent._sgd_period


def resident_megabytes(pid: int | str = "self") -> float:
    """Returns the current resident memory of a process; 0 if it has just died."""
    try:
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def take_steps(engine: Any, steps: int) -> dict[str, float]:
    """Takes environment steps, and blocks until all dispatched computations are done.

    Args:
      engine: a contender's engine.
      steps: number of steps.

    Returns:
      CPU and wall-clock microseconds per step, and resident megabytes.
    """
    import jax

    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        engine.step()
    jax.block_until_ready(getattr(engine, "state", ()))
    return dict(
        cpu=(time.process_time() - cpu) / steps * 1e6,
        wall=(time.perf_counter() - wall) / steps * 1e6,
        resident=resident_megabytes(),
    )


def _answer(engine: Any, question: dict[str, Any]) -> dict[str, Any]:
    if "parts" in question:
        from eve_acme.cli.bench import parts

        return parts.measure(engine, question["parts"])
    if "steps" in question:
        return take_steps(engine, question["steps"])
    replay = getattr(engine, "replay", None)
    return dict(
        peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        resident=resident_megabytes(),
        replay=replay.nbytes / 2**20 if replay is not None else 0.0,
    )


def main() -> None:
    """Answers questions until end of file on stdin."""
    request = json.loads(sys.argv[1])
    os.sched_setaffinity(0, request["cores"])  # Before JAX counts the cores.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Output of libraries must not mix with answers.
    import jax
    from bsuite import bsuite  # noqa: F401

    jax.block_until_ready(jax.jit(lambda x: x + 1)(0.0))
    imports = resident_megabytes()
    engine = make_engine(request["name"], request["task"])
    take_steps(engine, WARM_UP_STEPS)
    about = dict(
        parameters=engine.parameters, samples_per_step=samples_per_step(engine), imports=imports
    )
    print(json.dumps(about), file=out)
    for line in sys.stdin:
        print(json.dumps(_answer(engine, json.loads(line))), file=out)


if __name__ == "__main__":
    main()
