"""What transitions say when they enter replay, before anything is learnt from them.

Two things are known exactly at the insert: what is left of the prior's variance at an input
(`tangent`), so that no visit has to wait until it is drawn to be counted, and the scale of
returns, in whose units values are learnt: the geometric mean of the largest and of the mean
absolute discounted sum of rewards. (The largest alone grows a hundredfold with a first treasure,
and so does the prior's spread with it: everything else is tried before the treasure is taken again.
The mean alone is blind to what is rare.) The sum runs backwards, `G <- gamma G + r` from an
episode's start, as in the reward scaling of common PPO implementations: it needs no episode's end.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core import tangent
from eve_acme.core.networks import Network
from eve_acme.core.noise import Repeats
from eve_acme.core.targets import UNBOUNDED
from eve_acme.core.units import grown, in_units
from eve_acme.types import SparseInput, Transition

_ONE = np.ones(1, np.float32)
MOST_ENTRIES = 4
"""Entries that are not zero up to which an input is stored, and learnt from, by its entries."""


class Known(NamedTuple):
    """A snapshot, as arrays that do not change.

    Attributes:
      tangent: the tangent factor; () if the posterior has another structure.
      scale: of returns; zero until a reward was seen.
      units: `[d]`, of the entries of observations; () for ones.
    """

    tangent: Any
    scale: float
    units: Any = ()


def vector(network: Network, observation: Any) -> Any:
    """An observation as a vector `[d]`; an index as the SparseInput that it stands for."""
    if isinstance(observation, SparseInput):
        return observation
    if network.indexed:
        return SparseInput(np.array([observation], np.int32), _ONE)
    leaves = [np.ravel(_scaled(leaf)) for leaf in jax.tree_util.tree_leaves(observation)]
    return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)


def vectors(network: Network, observations: Any, batch: int) -> Any:
    """`vector` of observations with `batch` leading axes."""
    if isinstance(observations, SparseInput):
        return observations
    if network.indexed:
        index = np.asarray(observations, np.int32)[..., None]
        return SparseInput(index, np.ones(index.shape, np.float32))
    leaves = [_scaled(leaf) for leaf in jax.tree_util.tree_leaves(observations)]
    return np.concatenate([x.reshape(*x.shape[:batch], -1) for x in leaves], axis=-1)


def _scaled(leaf: Any) -> np.ndarray:
    """As numbers, bytes as at most one."""
    leaf = np.asarray(leaf)
    return leaf.astype(np.float32) / np.float32(255.0 if leaf.dtype == np.uint8 else 1.0)


def with_entries(network: Network, batches: Transition) -> Transition:
    """Batches `[R, k, B, ...]` with observations by their entries, if none has more than
    `MOST_ENTRIES` that are not zero; else as they are."""
    found = []
    for observations in (batches.o_tm1, batches.o_t):
        x = vectors(network, observations, 3)
        if not isinstance(x, SparseInput):
            there = x != 0.0
            most = int(there.sum(axis=-1).max())
            if most > MOST_ENTRIES:
                return batches
            size = 1 << max(0, most - 1).bit_length()  # Few shapes: each is compiled for.
            index = np.argsort(~there, axis=-1, kind="stable")[..., :size].astype(np.int32)
            value = np.take_along_axis(x, index, axis=-1)
            x = SparseInput(np.where(value != 0.0, index, -1), value)
        found.append(x)
    return batches._replace(o_tm1=found[0], o_t=found[1])


class Evidence:
    """Counts transitions as they enter replay; on the host, in NumPy."""

    def __init__(self, config: EVEConfig, network: Network):
        self._config, self._network = config, network
        self._factor: tangent.Factor | None = None
        if config.counts_inputs:
            assert network.width is not None, "with_example says it"
            self._factor = tangent.Factor(
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
        """What a value of one stands for; zero until a reward was seen."""
        if not self._config.adaptive_scale:
            return 1.0
        if not self._largest:
            return 0.0
        return math.sqrt(self._largest * self._sum / self._count)

    @property
    def largest(self) -> float:
        """The largest absolute return; `UNBOUNDED` if values are not learnt in its units."""
        in_units = self._config.adaptive_scale and self._config.prior == "unit"
        return self._largest if in_units else UNBOUNDED

    def add(self, transition: Transition, return_so_far: Any) -> None:
        """Counts one transition.

        Args:
          transition: one, not a batch.
          return_so_far: G after the transition's reward.
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

    def outgrown_by(self, observation: Any) -> bool:
        """Whether `measure` would change units: what was drawn before is to be learnt before."""
        if isinstance(self.units, tuple):
            return False
        return grown(self.units, vector(self._network, observation)) is not self.units

    def measure(self, observation: Any) -> None:
        """Makes the units fit an observation; and counts all so far in them."""
        if isinstance(self.units, tuple):
            return
        old, self.units = self.units, grown(self.units, vector(self._network, observation))
        if self._factor is not None and old is not self.units:
            changed = (old != self.units) & (old > 0.0)
            if changed.any():
                self._factor.rescale(np.where(changed, old / np.maximum(self.units, 1e-38), 1.0))

    def shares(self, observations: Any, batch: int = 2) -> Any:
        """What is left of the prior's variance at observations with `batch` leading axes:
        `[..., num_actions]`; () if the posterior has another structure."""
        if self._factor is None:
            return ()
        x = in_units(vectors(self._network, observations, batch), self.units)
        return self._factor.shares(x).astype(np.float32)

    def known(self) -> Known:
        """What is known now."""
        factor = () if self._factor is None else self._factor.snapshot()
        return Known(factor, self.scale, self.units)

    def save(self) -> dict[str, Any]:
        """Everything, as arrays."""
        returns = (self._largest, self._sum, self._count)
        factor = self._factor and self._factor.save()
        return dict(returns=returns, factor=factor, units=self.units, repeats=self._repeats.save())

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        self._largest, self._sum, self._count = saved["returns"]
        self.units = saved["units"]
        if self._factor is not None:
            self._factor.restore(saved["factor"])
            self._repeats.restore(saved["repeats"])
