"""Profiles an environment step by its parts.

Timers wrap the parts of the engine. The pieces of the learning step are compiled and timed one by
one. Their sum exceeds the time of the whole learning step: there, XLA compiles them together, while
each separate piece has the overhead of a call.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.cli.bench.embedded import spread
from eve_acme.core import adam as adam_lib
from eve_acme.core import update
from eve_acme.core.gradients import gradients
from eve_acme.embedded import Engine

STEPS = 100


def measure(engine: Engine, repeats: int) -> dict[str, dict[str, float]]:
    """Measures the CPU microseconds per environment step of each part."""
    pieces = _pieces(engine)
    timers = _Timers(engine)
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        turn = timers.turn()
        inside = {name: _cost(piece) for name, piece in pieces.items()}
        turn |= {f"update, by itself: {name}": value for name, value in inside.items()}
        for name, value in turn.items():
            found.setdefault(name, []).append(value)
    return {name: spread(values) for name, values in found.items()}


class _Timers:
    """Wraps the parts of an engine in timers; the engine still works, a little slower."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._spent: dict[str, float] = {}
        self._within = 0.0
        environment: Any = engine.environment
        environment.step = self._timed("environment", environment.step)
        environment.reset = self._timed("environment", environment.reset)
        memory, evidence = engine.memory, engine.memory.evidence
        evidence.add = self._timed("posterior: count", evidence.add)  # type: ignore[method-assign]
        evidence.shares = self._timed("posterior: spread", evidence.shares)  # type: ignore[method-assign]
        memory.add = self._timed("replay", memory.add)  # type: ignore[method-assign]
        memory.draw = self._timed("replay", memory.draw)  # type: ignore[method-assign]
        memory.take = self._timed("replay", memory.take)  # type: ignore[method-assign]
        engine._plan_episode = self._timed("act: plan an episode", engine._plan_episode)  # type: ignore[method-assign]
        engine._act = self._timed("act: choose", engine._act)  # type: ignore[method-assign]
        learning = engine._learning
        learning._learner = learning._learner._replace(
            learn=self._timed("update", learning._learner.learn)
        )

    def _timed(self, name: str, function: Callable) -> Callable:
        """Wraps a function: adds its time, without that of nested timed functions, to `name`."""
        self._spent[name] = 0.0

        def timed(*args: Any) -> Any:
            start, before = time.process_time(), self._within
            self._within = 0.0
            out = jax.block_until_ready(function(*args))
            total = time.process_time() - start
            self._spent[name] += total - self._within
            self._within = before + total
            return out

        return timed

    def turn(self) -> dict[str, float]:
        """Takes `STEPS` steps; returns the microseconds per step of each part."""
        self._spent = dict.fromkeys(self._spent, 0.0)
        start = time.process_time()
        for _ in range(STEPS):
            self._engine.step()
        jax.block_until_ready(self._engine.state)
        total = time.process_time() - start
        parts = {"whole step": total, **self._spent}
        parts["Python around them"] = total - sum(self._spent.values())
        return {name: seconds / STEPS * 1e6 for name, seconds in parts.items()}


def _cost(piece: Callable[[], Any]) -> float:
    start = time.process_time()
    for _ in range(STEPS):
        jax.block_until_ready(piece())
    return (time.process_time() - start) / STEPS * 1e6


def _each(function: Callable, inputs: Any) -> Any:
    """Applies `function` to each minibatch in turn."""
    return update.scan(lambda carry, one: (carry, function(one)), (), inputs)[1]


def _pieces(engine: Engine) -> dict[str, Callable[[], Any]]:
    """Returns the pieces of the dense learner's round; each runs over all minibatches."""
    config, network = engine.config, engine.network
    shape = (config.batches_per_step, config.batch_size)
    index = np.random.default_rng(0).integers(engine.replay.size, size=shape)
    batches = engine.replay.read(index)
    shares = engine.memory.evidence.shares(batches.o_t)
    batches = update.encoded(network, batches, engine.memory.evidence.units)
    state = update.make_dense_learner(config, network).init(jax.random.PRNGKey(0))
    known = update.Round(n=jnp.int32(100), explore=jnp.float32(1.0), shares=shares)
    _, randomness = update.begin_round(config, network, state, batches, known)
    gradient = jax.tree_util.tree_map(jnp.ones_like, state.params)

    def rng(state: update.State) -> Any:
        return update.begin_round(config, network, state, batches, known)[1]

    def bootstrap(state: update.State) -> Any:
        return update.learn_round(
            config,
            state,
            batches,
            randomness,
            known,
            lambda state, x: (network, state, x),
            lambda state, batch, q_t, normals: (state, q_t),
        )[1]

    def backward(state: update.State) -> Any:
        def one(batch: Any) -> Any:
            grads = gradients(network, state.params, batch.o_tm1, batch.a_tm1)
            return grads.weighted(grads.q - batch.r_t)

        return _each(one, batches)

    def adam(state: update.State) -> Any:
        def one(carry: Any, scale: Any) -> Any:
            params, moments = carry
            scaled = jax.tree_util.tree_map(lambda g: scale * g, gradient)
            return adam_lib.adam_step(config, scaled, moments, params), None

        return update.scan(one, (state.params, state.optimizer), batches.r_t[:, 0])[0]

    named = {
        "random numbers": rng,
        "bootstrap (values of next states)": bootstrap,
        "forward, backward": backward,
        "Adam": adam,
    }
    compiled = {name: jax.jit(piece) for name, piece in named.items()}
    for piece in compiled.values():
        jax.block_until_ready(piece(state))
    return {name: functools.partial(piece, state) for name, piece in compiled.items()}
