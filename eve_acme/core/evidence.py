"""Statistics that transitions update when they enter replay, before any minibatch draws them.

Two statistics are exact at the insert:

- the share of the prior's variance that is left at an input (`tangent`): a visit counts at once,
  not only after a minibatch has drawn it;
- the scale of returns, in whose units values are learnt: the geometric mean of the largest and the
  mean absolute discounted sum of rewards. The largest alone grows a hundredfold with a first
  treasure, and the prior's spread grows with it, so that the agent tries everything else before it
  takes the treasure again. The mean alone barely reacts to rare rewards.

The discounted sum runs backwards, `G <- gamma G + r` from an episode's start, as in the reward
scaling of common PPO implementations: it is known before the episode ends.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core.networks import Network
from eve_acme.core.noise import Repeats
from eve_acme.core.tangent_factor import Factor
from eve_acme.core.targets import UNBOUNDED
from eve_acme.core.units import BYTE, grow, in_units
from eve_acme.types import HostArray, SparseInput, Transition

_ONE = np.ones(1, np.float32)
MOST_ENTRIES = 4
"""Inputs with at most this many non-zero entries are stored and learnt from as `SparseInput`."""


class Known(NamedTuple):
    """A snapshot of `Evidence`; its arrays do not change.

    Attributes:
      tangent: the tangent factor; () if the posterior has another structure.
      scale: the scale of returns; zero until the first non-zero reward.
      units: `[d]`, units of the entries of observations; () if all units are one.
    """

    tangent: Any
    scale: float
    units: Any = ()


def vector(network: Network, observation: Any) -> Any:
    """Flattens an observation into a vector `[d]`, on the host.

    Args:
      network: the Q-network, which says whether observations are indices of one-hot vectors.
      observation: one observation, or a SparseInput.

    Returns:
      A vector `[d]`, or a SparseInput for an index or a SparseInput.
    """
    if isinstance(observation, SparseInput):
        return observation
    if network.indexed:
        return SparseInput(np.array([observation], np.int32), _ONE)
    leaves = [np.ravel(_scaled(leaf)) for leaf in jax.tree_util.tree_leaves(observation)]
    return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)


def vectors(network: Network, observations: Any, batch: int) -> Any:
    """Flattens observations with `batch` leading axes; see `vector`.

    Args:
      network: the Q-network.
      observations: observations with leading axes, or SparseInputs.
      batch: the number of leading axes.

    Returns:
      Vectors `[..., d]`, or a SparseInput `[..., K]`.
    """
    if isinstance(observations, SparseInput):
        return observations
    if network.indexed:
        index = np.asarray(observations, np.int32)[..., None]
        return SparseInput(index, np.ones(index.shape, np.float32))
    leaves = [_scaled(leaf) for leaf in jax.tree_util.tree_leaves(observations)]
    return np.concatenate([x.reshape(*x.shape[:batch], -1) for x in leaves], axis=-1)


def _scaled(leaf: Any) -> HostArray:
    """Casts to float32; bytes are scaled to [0, 1]."""
    leaf = np.asarray(leaf)
    x: HostArray = leaf.astype(np.float32, copy=False)
    return x * BYTE if leaf.dtype == np.uint8 else x


def with_entries(network: Network, batches: Transition) -> Transition:
    """Stores the observations of batches as SparseInputs if all of them are sparse enough.

    Args:
      network: the Q-network.
      batches: transitions with leading axes `[R, k, B]`.

    Returns:
      Batches with SparseInputs `[R, k, B, K]` if no observation has more than `MOST_ENTRIES`
      non-zero entries; otherwise `batches` itself.
    """
    found = []
    for observations in (batches.o_tm1, batches.o_t):
        x = vectors(network, observations, 3)
        if not isinstance(x, SparseInput):
            there = x != 0.0
            most = int(there.sum(axis=-1).max())
            if most > MOST_ENTRIES:
                return batches
            size = 1 << max(0, most - 1).bit_length()  # Powers of two: each shape recompiles.
            index = np.argsort(~there, axis=-1, kind="stable")[..., :size].astype(np.int32)
            value = np.take_along_axis(x, index, axis=-1)
            x = SparseInput(np.where(value != 0.0, index, -1), value)
        found.append(x)
    return batches._replace(o_tm1=found[0], o_t=found[1])


class Evidence:
    """Accumulates the statistics of transitions as they enter replay; on the host, in NumPy.

    Attributes:
      units: `[d]`, units of the entries of observations; () if all units are one.
    """

    def __init__(self, config: EVEConfig, network: Network):
        self._config, self._network = config, network
        self._factor: Factor | None = None
        if config.counts_inputs:
            assert network.width is not None, "with_example says it"
            self._factor = Factor(
                network.width,
                network.num_actions,
                config.omega,
                len(config.hidden),
                config.prior_std,
            )
        self._repeats = Repeats()
        self._largest, self._sum, self._count = 0.0, 0.0, 0
        self.units: Any = ()
        if config.adaptive_scale and not network.indexed:
            assert network.width is not None, "with_example says it"
            self.units = np.zeros(network.width, np.float32)

    @property
    def scale(self) -> float:
        """The return that a value of one represents; zero until the first non-zero reward."""
        if not self._config.adaptive_scale:
            return 1.0
        if not self._largest:
            return 0.0
        return math.sqrt(self._largest * self._sum / self._count)

    @property
    def largest(self) -> float:
        """The largest absolute return so far; `UNBOUNDED` unless values have adaptive units and a
        unit prior."""
        in_units = self._config.adaptive_scale and self._config.prior == "unit"
        return self._largest if in_units else UNBOUNDED

    def add(self, transition: Transition, return_so_far: Any) -> None:
        """Counts one transition.

        Args:
          transition: a single transition, without a batch axis.
          return_so_far: G, the discounted sum of the episode's rewards up to this transition's.
        """
        size = abs(float(return_so_far))
        self._largest, self._sum = max(self._largest, size), self._sum + size
        self._count += 1
        self.measure(transition.o_tm1)
        if self._factor is not None:
            x, action = vector(self._network, transition.o_tm1), int(transition.a_tm1)
            next_x = vector(self._network, transition.o_t) if transition.discount_t else ()
            tally = self._repeats.add(x, action, float(transition.r_t), next_x)
            self._factor.add(in_units(x, self.units), action, tally, self.scale)

    def measure(self, observation: Any) -> None:
        """Enlarges the units to fit an observation, and rescales the counted inputs to them."""
        if isinstance(self.units, tuple):
            return
        old, self.units = self.units, grow(self.units, vector(self._network, observation))
        if self._factor is not None and old is not self.units:
            changed = (old != self.units) & (old > 0.0)
            if changed.any():
                self._factor.rescale(np.where(changed, old / np.maximum(self.units, 1e-38), 1.0))

    def shares(self, observations: Any, batch: int = 2) -> Any:
        """Computes the share of the prior's variance that is left at observations.

        Args:
          observations: observations with `batch` leading axes.
          batch: the number of leading axes.

        Returns:
          `[..., num_actions]`; () if the posterior has another structure.
        """
        if self._factor is None:
            return ()
        x = in_units(vectors(self._network, observations, batch), self.units)
        return self._factor.shares(x).astype(np.float32)

    def known(self) -> Known:
        """Returns a snapshot for learners and actors."""
        factor = () if self._factor is None else self._factor.snapshot()
        return Known(factor, self.scale, self.units)

    def save(self) -> dict[str, Any]:
        """Returns the whole state as arrays."""
        returns = (self._largest, self._sum, self._count)
        factor = self._factor and self._factor.save()
        return dict(returns=returns, factor=factor, units=self.units, repeats=self._repeats.save())

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._largest, self._sum, self._count = saved["returns"]
        self.units = saved["units"]
        if self._factor is not None:
            self._factor.restore(saved["factor"])
            self._repeats.restore(saved["repeats"])
