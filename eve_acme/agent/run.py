"""The Acme agent in one process, in lock-step: an environment step, then the rounds due with it.

It has the interface of the embedded engine, so that callers can use either. The learner reads each
step from Reverb's queue as soon as it is written. It draws minibatches from its own memory with the
run's seed, so two runs with the same seed are equal.
"""

import os
import pathlib
import pickle
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import cloudpickle
import dm_env
import jax
import reverb
from acme import specs, wrappers
from acme.utils import counting, loggers

from eve_acme.agent import storage
from eve_acme.agent.actor import POSTERIOR
from eve_acme.agent.builder import EVEBuilder
from eve_acme.config import EVEConfig
from eve_acme.core.networks import Network, num_parameters
from eve_acme.core.posterior import Posterior
from eve_acme.embedded.loop import Loop
from eve_acme.files import write_atomically


class AcmeEngine(Loop):
    """EVE on one environment, built from the parts of the Acme agent and its own Reverb server.

    Args:
      environment: any `dm_env.Environment` with one discrete action.
      network: the Q-network.
      config: the hyper-parameters.
      seed: of the agent; the environment has its own.
      logger_fn: makes the learner's logger; by default the learner logs nothing.
    """

    saves = True

    def __init__(
        self,
        environment: dm_env.Environment,
        network: Network,
        config: EVEConfig,
        seed: int,
        logger_fn: Callable[..., loggers.Logger] | None = None,
    ):
        self.config = config
        super().__init__(environment)
        self._network = network
        self._logger_fn = logger_fn or (lambda *_: loggers.NoOpLogger())
        self._keys = jax.random.split(jax.random.PRNGKey(seed))
        self._counter = counting.Counter()
        self.parameters = num_parameters(jax.eval_shape(network.init, self._keys[0]))
        self._start(items=0, checkpoint=None)

    def _start(self, items: int, checkpoint: str | None) -> None:
        """Starts the server and makes the parts of the agent.

        Args:
          items: number of transitions that the adder has written.
          checkpoint: path of replay's checkpoint, which the server loads; None for none.
        """
        wrapped = wrappers.SinglePrecisionWrapper(self.environment)
        spec = specs.make_environment_spec(wrapped)
        builder = EVEBuilder(self.config, episodes_so_far=lambda: self.episodes, limited=False)
        policy = builder.make_policy(self._network, spec)
        learner_key, actor_key = self._keys
        self._wrapped, self._spec = wrapped, spec
        self._closed = False
        self._most_steps = storage.most_steps(self.config, spec, steps=1)
        self._directory = tempfile.TemporaryDirectory(prefix="eve-replay-")
        self._server = reverb.Server(
            builder.make_replay_tables(spec, policy),
            checkpointer=reverb.checkpointers.DefaultCheckpointer(
                self._directory.name, fallback_checkpoint_path=checkpoint
            ),
        )
        self._client = self._server.localhost_client()
        self._dataset = builder.make_dataset_iterator(self._client)
        self._adder = builder.make_adder(self._client, spec, policy)
        self._adder.transitions = items
        self._learner = builder.make_learner(
            random_key=learner_key,
            networks=self._network,
            dataset=self._dataset,
            logger_fn=self._logger_fn,
            environment_spec=spec,
            replay_client=self._client,
            counter=self._counter,
        )
        self._actor = builder.make_actor(actor_key, policy, spec, self._learner, self._adder)

    @property
    def n(self) -> int:  # type: ignore[override]
        """The posterior's n: one plus the number of steps in replay."""
        return 1 + self._adder.transitions

    @property
    def learner_updates(self) -> int:
        """Number of minibatches learnt so far."""
        return self._learner.rounds * self.config.batches_per_step

    @property
    def metrics(self) -> Any:
        """Metrics of the last rounds; None before the first."""
        return self._learner.metrics

    def _learnt(self) -> dict[str, Any]:
        return self._learner.report()

    def check_room(self, steps: int) -> None:
        """Raises ReplayFull unless replay can hold `steps` steps."""
        storage.check_size(self.config, self._most_steps, steps)

    @property
    def can_save(self) -> bool:
        """Whether the environment is between episodes."""
        return self._timestep is None

    def posterior(self) -> Posterior:
        """Returns the current posterior."""
        return self._learner.get_variables([POSTERIOR])[0]

    def _make_room(self) -> None:
        self.check_room(self._adder.transitions + self.config.n_step)

    def _reset(self) -> dm_env.TimeStep:
        timestep = self._wrapped.reset()
        self._actor.observe_first(timestep)
        return timestep

    def _step(self, action: Any) -> dm_env.TimeStep:
        return self._wrapped.step(action)

    def _act(self, timestep: dm_env.TimeStep) -> Any:
        return self._actor.select_action(timestep.observation)

    def _observe(self, timestep: dm_env.TimeStep, action: Any, after: dm_env.TimeStep) -> None:
        self._actor.observe(action, after)

    def _learn_step(self, after: dm_env.TimeStep) -> None:
        if self._adder.transitions > self._learner.steps:
            self._learner.step(least=0)

    def save(self, directory: str | os.PathLike) -> None:
        """Saves the whole run to `directory`; only between episodes.

        Within an episode, Reverb's writer buffers steps that its checkpoints do not contain. The
        file that names the parts is written last, so after a crash the previous save is valid.
        """
        if not self.can_save:
            raise RuntimeError("save: within an episode, allowed is between episodes")
        os.makedirs(directory, exist_ok=True)
        checkpoint = shutil.move(self._client.checkpoint(), directory)
        saved = dict(
            replay=os.path.basename(checkpoint),
            items=self._adder.transitions,
            place=(self._adder.life, self._adder.items),
            learner=self._learner.save(),
            actor=self._actor.save(),
            counter=self._counter.save(),
            environment=self.environment,
            counts=(self.episodes, self.env_steps),
        )
        # pickle cannot serialise the lambdas that environments hold.
        write_atomically(pathlib.Path(directory) / "run.pkl", cloudpickle.dumps(saved))
        for name in os.listdir(directory):
            old = os.path.join(directory, name)
            if os.path.isdir(old) and name != saved["replay"]:
                shutil.rmtree(old)

    def restore(self, directory: str | os.PathLike) -> None:
        """Restores the run that `save` wrote, with a new Reverb server.

        Unpickles: load only files that you trust.
        """
        with open(os.path.join(directory, "run.pkl"), "rb") as file:
            saved = pickle.load(file)
        self.close()
        self.environment = saved["environment"]
        self._timestep = None
        self.episodes, self.env_steps = saved["counts"]
        self._counter.restore(saved["counter"])
        self._start(saved["items"], os.path.join(directory, saved["replay"]))
        self._adder.life, self._adder.items = saved["place"]
        self._learner.restore(saved["learner"])
        self._actor.restore(saved["actor"])

    def close(self) -> None:
        """Closes writer, server and reader, in this order.

        The writer needs a running server. The reader blocks on the next step: stopping the server
        unblocks it at once, while closing the reader first would take seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._adder.close()
        self._server.stop()
        self._dataset.close()
        self._directory.cleanup()

    def __enter__(self) -> "AcmeEngine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
