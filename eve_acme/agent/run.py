"""The Acme agent in one process, in lock-step: an environment step, then the learning it pays for.

It has the public face of the embedded engine, so that whatever runs one can run the other. Which
transitions a round holds is Reverb's choice, and Reverb takes no seed: two runs of one seed
differ, unlike the embedded engine's.
"""

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import dm_env
import jax
import reverb
from acme import specs, wrappers
from acme.utils import counting, loggers

from eve_acme.agent import replay, storage
from eve_acme.agent.actor import POSTERIOR
from eve_acme.agent.builder import EVEBuilder
from eve_acme.config import EVEConfig
from eve_acme.core.networks import Network, num_parameters
from eve_acme.core.posterior import Posterior
from eve_acme.types import Episode


class AcmeEngine:
    """EVE on one environment, out of the parts of the Acme agent and a Reverb server of its own."""

    def __init__(
        self,
        environment: dm_env.Environment,
        network: Network,
        config: EVEConfig,
        seed: int,
        logger_fn: Callable[..., loggers.Logger] | None = None,
    ):
        self.config = config
        self.environment = environment
        self._network = network
        self._logger_fn = logger_fn or (lambda *_: loggers.NoOpLogger())
        self._keys = jax.random.split(jax.random.PRNGKey(seed))
        self._counter = counting.Counter()
        self.parameters = num_parameters(jax.eval_shape(network.init, self._keys[0]))
        self.episodes = 0
        self.env_steps = 0
        self._timestep: dm_env.TimeStep | None = None
        self._episode_length = 0
        self._episode_return = 0.0
        self._start(items=0, checkpoint=None)

    def _start(self, items: int, checkpoint: str | None) -> None:
        """Starts the server, from a checkpoint of replay if there is one, and makes the parts."""
        wrapped = wrappers.SinglePrecisionWrapper(self.environment)
        spec = specs.make_environment_spec(wrapped)
        builder = EVEBuilder(self.config, episodes_so_far=lambda: self.episodes)
        policy = builder.make_policy(self._network, spec)
        learner_key, actor_key = self._keys
        self._wrapped, self._spec = wrapped, spec
        self._closed = False
        self._most_steps = storage.most_steps(self.config, spec)
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
        self._adder.items = items
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
    def n(self) -> int:
        """The posterior's n: one, and each step that reached replay."""
        return 1 + self._adder.items

    @property
    def learner_updates(self) -> int:
        """Minibatches so far."""
        return self._learner.rounds * self.config.batches_per_step

    @property
    def metrics(self) -> Any:
        """What the last round showed of itself."""
        return self._learner.metrics

    def check_room(self, steps: int) -> None:
        """Raises ReplayFull unless replay can hold so many steps."""
        storage.check_size(self.config, self._most_steps, steps)

    @property
    def can_save(self) -> bool:
        """Between episodes."""
        return self._timestep is None

    def posterior(self) -> Posterior:
        """The posterior as of now."""
        return self._learner.get_variables([POSTERIOR])[0]

    def replay_info(self) -> Any:
        """Reverb's own account of the table: size, inserts, samples."""
        return self._client.server_info()[replay.TABLE]

    def episodes_until(self, last_episode: int) -> Iterator[Episode]:
        """Trains, and gives each episode as it ends, until `last_episode` have been played."""
        while self.episodes < last_episode:
            episode = self.step()
            if episode is not None:
                yield episode

    def step(self) -> Episode | None:
        """One environment step with its learning; the episode, if it ended with it.

        Raises ReplayFull before anything has happened.
        """
        self.check_room(self._adder.items + self._adder.n_step)
        if self._timestep is None:
            self._timestep = self._wrapped.reset()
            self._episode_length, self._episode_return = 0, 0.0
            self._actor.observe_first(self._timestep)
        action = self._actor.select_action(self._timestep.observation)
        after = self._wrapped.step(action)
        self._actor.observe(action, after)
        self.env_steps += 1
        self._episode_length += 1
        self._episode_return += float(after.reward)
        while self._learner.rounds < replay.rounds_due(self.config, self._adder.items):
            self._learner.step()
        self._timestep = after
        if not after.last():
            return None
        self.episodes += 1
        self._timestep = None
        return Episode(self.episodes, self._episode_length, self._episode_return)

    def save(self, directory: str | os.PathLike) -> None:
        """All of the run, into `directory`; between episodes only.

        (Within one, Reverb's writer holds steps that no checkpoint of it contains.) The file that
        names the parts is put in place last, so that a crash leaves the save before it valid.
        """
        if not self.can_save:
            raise RuntimeError("save: within an episode, allowed is between episodes")
        os.makedirs(directory, exist_ok=True)
        checkpoint = shutil.move(self._client.checkpoint(), directory)
        saved = dict(
            replay=os.path.basename(checkpoint),
            items=self._adder.items,
            learner=self._learner.save(),
            actor=self._actor.save(),
            counter=self._counter.save(),
            environment=self.environment,
            counts=(self.episodes, self.env_steps),
        )
        path = os.path.join(directory, "run.pkl")
        with open(path + ".new", "wb") as file:
            cloudpickle.dump(saved, file)  # Environments hold lambdas.
        os.replace(path + ".new", path)
        for name in os.listdir(directory):
            old = os.path.join(directory, name)
            if os.path.isdir(old) and name != saved["replay"]:
                shutil.rmtree(old)

    def restore(self, directory: str | os.PathLike) -> None:
        """Goes back to where `save` was called, with a new Reverb server."""
        with open(os.path.join(directory, "run.pkl"), "rb") as file:
            saved = pickle.load(file)
        self.close()
        self.environment = saved["environment"]
        self._timestep = None
        self.episodes, self.env_steps = saved["counts"]
        self._counter.restore(saved["counter"])
        self._start(saved["items"], os.path.join(directory, saved["replay"]))
        self._learner.restore(saved["learner"])
        self._actor.restore(saved["actor"])

    def close(self) -> None:
        """Ends writer, server and reader, in this order.

        The writer needs a server that answers. The reader is waiting for a step that will not
        come: a server that stops sends it home at once, while by itself it takes seconds.
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
