"""The posterior over all parameters: a Gaussian around the target network's (paper, Algorithm 3).

    theta' ~ N(mean, 1 / precision),   likelihood's part of the precision: omega n F

The Fisher F has one of four structures: `diagonal` (the paper's; this module), `kronecker` and
`input` (module `kronecker`), `tangent` (module `tangent`). What stands for the prior comes in three
forms:

- `paper`: omega n (F + epsilon), the regularised Fisher as printed. Its spread at what was never
  seen is huge while n is small, and fades as n grows.
- `constant`: omega n F + lambda, a Gaussian prior on weights. Its spread in *values* is lambda's
  times the network's gain, which learning changes: trained towards targets of zero, the network
  becomes flat, untried actions look certain, and exploration dies.
- `unit`: omega n F + U, a unit-information prior (Kass and Wasserman, 1995): U is the Fisher
  information of one transition at unit input, and each layer (or parameter array) accounts for an
  equal share of a prior variance `prior_std^2` of every *value*, whatever the gain. It belongs to
  the linearised network (see `predictive`), in which the Fisher is exact.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core.rowwise import elementwise, row_sums
from eve_acme.types import Array, Params

_TINY = 1e-30


class Posterior(NamedTuple):
    """Everything that a sample is drawn from, as one value that travels whole.

    Attributes:
      mean: parameters of the target network, whose values are in units of `scale`.
      fisher: the weighted sum of squared log-likelihood gradients, a tree like `mean`; of the
        parameters without factors alone, if there are factors.
      weight: scalar m, the sum of those weights; starts at one.
      n: scalar, environment steps seen; starts at one.
      version: learner updates behind it.
      basis: eigenbases of the Kronecker factors, or ().
      tangent: the factor that is counted at the insert (`tangent.Arrow` or `Landmarks`), or ().
      scale: scalar, what a value of one stands for.
      units: `[d]`, those of the entries of observations; () for ones.
    """

    mean: Params
    fisher: Params
    weight: Array
    n: Array
    version: Array
    basis: Any = ()
    tangent: Any = ()
    scale: Array | float = 1.0
    units: Any = ()


def unit_information(fisher: Params, weight: Array) -> Params:
    """U for each leaf: the mean Fisher of its module's bias, whose input is one.

    A module without a bias has its total Fisher shared by its output units instead.
    """

    def of_module(module: Params) -> Params:
        if isinstance(module, Mapping) and set(module) == {"w", "b"}:
            bias = jnp.ravel(module["b"])
            return dict.fromkeys(module, row_sums(bias) / (bias.size * weight))
        return jax.tree_util.tree_map(
            lambda f: jnp.sum(f) / (weight * (f.shape[-1] if f.ndim else 1)), module
        )

    return {name: of_module(module) for name, module in fisher.items()}


def variances(config: EVEConfig, posterior: Posterior) -> Params:
    """The posterior variance of each parameter that has a diagonal Fisher, a tree like `fisher`.

    For the unit prior it is relative to the prior's: one where nothing was learnt, going to zero.
    """
    scale = config.omega * jnp.asarray(posterior.n, jnp.float32) / posterior.weight

    def relative(fisher: Array, unit: Array) -> jax.Array:
        return elementwise(lambda f: (unit + _TINY) / (scale * f + unit + _TINY), fisher)

    def of_weights(fisher: Array) -> jax.Array:
        if config.prior == "paper":
            return 1.0 / (scale * fisher + config.omega * posterior.n * config.epsilon)
        return 1.0 / (scale * fisher + config.prior_precision)

    if config.prior == "unit":
        units = unit_information(posterior.fisher, posterior.weight)
        return jax.tree_util.tree_map(relative, posterior.fisher, units)
    return jax.tree_util.tree_map(of_weights, posterior.fisher)


def precision(config: EVEConfig, posterior: Posterior) -> Params:
    """The precision of each parameter, a tree like `fisher`; relative for the unit prior."""
    return jax.tree_util.tree_map(lambda v: 1.0 / v, variances(config, posterior))


def normals_like(key: jax.Array, tree: Params, leading: tuple[int, ...] = ()) -> Params:
    """Standard normals, a tree like `tree`, each leaf with `leading` axes put before its own.

    One call of the generator serves all leaves: many small calls cost more than the numbers.
    """
    starts, total = starts_of(tree)
    flat = jax.random.normal(key, (*leading, total), jnp.float32)
    return jax.tree_util.tree_map(
        lambda leaf, i: flat[..., i : i + leaf.size].reshape(*leading, *leaf.shape), tree, starts
    )


def starts_of(tree: Params) -> tuple[Params, int]:
    """Where each leaf begins among the numbers of all leaves, and how many these are."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    starts = [end - leaf.size for end, leaf in zip(ends, leaves, strict=True)]
    return structure.unflatten(starts), sum(leaf.size for leaf in leaves)


def perturbation(config: EVEConfig, posterior: Posterior, key: jax.Array) -> Params:
    """`theta' - mean` for one sample theta', a tree like `fisher` (`variances` apply)."""
    return jax.tree_util.tree_map(
        lambda variance, z: jnp.sqrt(variance) * z,
        variances(config, posterior),
        normals_like(key, posterior.fisher),
    )


def sample(config: EVEConfig, posterior: Posterior, key: jax.Array) -> Params:
    """Draws theta' once (paper, 'Posterior Sampling'), from a diagonal posterior.

    The unit prior scales with the value that is asked for, and has samples of values alone: see
    `predictive.make_sampler`.
    """
    if config.prior == "unit":
        raise ValueError("prior: got 'unit', allowed for weight samples is constant or paper")
    return jax.tree_util.tree_map(jnp.add, posterior.mean, perturbation(config, posterior, key))
