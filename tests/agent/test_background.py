"""Calls in the background: results, errors, and a caller that hears what it is told."""

import ctypes
import os
import signal
import threading

import jax
import numpy as np
import pytest
from acme.specs import EnvironmentSpec
from dm_env import specs

from eve_acme.agent.background import Background
from eve_acme.agent.learner import EVELearner
from eve_acme.agent.replay import Mode
from eve_acme.config import EVEConfig
from eve_acme.core.networks import from_functions
from eve_acme.types import New, Rounds, Transition


def test_results_and_errors_come_from_one_other_thread():
    background = Background()
    threads = {background.call(threading.get_ident) for _ in range(3)}
    assert len(threads) == 1 and threading.get_ident() not in threads
    assert background.call(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        background.call(divmod, 7, 0)
    with pytest.raises(StopIteration):
        background.call(next, iter(()))
    assert background.call(int) == 0  # An error is not the end.


def test_the_thread_ends_with_the_object():
    background = Background()
    thread = background.call(threading.current_thread)
    assert thread.is_alive()
    del background
    thread.join(10)
    assert not thread.is_alive()


def test_a_caller_that_waits_can_be_ended():
    """As Acme ends its workers: with an exception that only Python code can hear."""
    waiting, ended, forever = threading.Event(), threading.Event(), threading.Event()

    def work():
        try:
            Background().call(lambda: waiting.set() or forever.wait())
        except SystemExit:
            ended.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert waiting.wait(10)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_long(worker.ident), ctypes.py_object(SystemExit)
    )
    assert ended.wait(10)
    forever.set()
    worker.join(10)


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_a_signal_handler_may_save_while_a_step_holds_the_lock(sampling):
    """Acme's checkpoints are made so; the data of the round sends the signal itself."""
    number = specs.Array((), np.float32)
    network = from_functions(
        init=lambda key: {"w": jax.numpy.ones(2)},
        apply=lambda params, x: params["w"] * x,
        num_actions=2,
        observation_spec=number,
    )
    saved = []

    class SignalWithinTheLock:
        def add(self, *unused):
            os.kill(os.getpid(), signal.SIGUSR2)
            heard.wait(10)

        def flush(self):
            pass

    heard = threading.Event()

    def handler(*unused):
        heard.set()
        saved.append(learner.save())

    config = EVEConfig(batches_per_step=1, batch_size=1, newest=False, min_replay=1)
    spec = EnvironmentSpec(number, specs.DiscreteArray(2), number, number)
    element = _round() if sampling == "sampled" else _trajectory()
    key, mode = jax.random.PRNGKey(0), Mode(sampling)
    learner = EVELearner(config, network, key, iter([element]), spec, mode)
    learner._learning._guard = SignalWithinTheLock()
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        learner.step()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert [state["learning"]["rounds"] for state in saved] == [1]


def _ones(*shape):
    one = np.ones(shape, np.float32)
    return Transition(o_tm1=one, a_tm1=one.astype(np.int32), r_t=one, discount_t=one, o_t=one)


def _round():
    return Rounds(_ones(1, 1, 1), np.ones(1, np.int32), 1)


def _trajectory():
    return New(_ones(1), np.ones(1, np.float32))
