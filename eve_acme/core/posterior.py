"""The posterior over all parameters: a Gaussian around the target parameters (paper, Algorithm 3).

    theta' ~ N(mean, 1 / precision),   likelihood term of the precision: omega n F

The Fisher F has one of four structures: `diagonal` (the paper's; this module), `kronecker` and
`input` (module `kronecker`), `tangent` (module `tangent`). The prior term has one of three forms:

- `paper`: omega n (F + epsilon), the regularised Fisher as printed. The standard deviation at
  unvisited inputs is huge while n is small, and vanishes as n grows.
- `constant`: omega n F + lambda, a Gaussian prior on weights. The standard deviation of *values* is
  lambda's times the network's gain, which learning changes: trained on targets of zero, the network
  becomes flat, untried actions look certain, and exploration stops.
- `unit`: omega n F + U, a unit-information prior (Kass and Wasserman, 1995). U is the Fisher
  information of one transition at unit input. Each layer (or parameter array) contributes an equal
  share of a prior variance `prior_std^2` of every *value*, whatever the gain. It requires the
  linearised network (see `predictive`), for which the Fisher is exact.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core.rowwise import elementwise, row_sums
from eve_acme.types import Array, Params

_TINY = 1e-30


class Posterior(NamedTuple):
    """All that is needed to draw a sample, from one state of the learner.

    Attributes:
      mean: parameters of the target network, whose values are in units of `scale`.
      fisher: the weighted sum of squared log-likelihood gradients, a tree like `mean`; with
        Kronecker factors only of the parameters that have none.
      weight: scalar m, the sum of those weights; starts at one.
      n: scalar, environment steps so far; starts at one.
      version: scalar, minibatches learnt so far.
      basis: eigenbases of the Kronecker factors, or ().
      tangent: the tangent factor (`tangent.Arrow` or `tangent.Landmarks`), which transitions update
        when they enter replay, or ().
      scale: scalar, the return that a value of one represents.
      units: `[d]`, units of the entries of observations; () if all units are one.
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
    """Computes U: for each module the mean Fisher of its bias, whose input is one.

    A module without a bias uses its total Fisher divided by its number of output units.

    Args:
      fisher: the weighted sum of squared gradients, a tree by module name.
      weight: scalar, the sum of the weights.

    Returns:
      A tree like `fisher`, of scalars.
    """
    chex.assert_rank(weight, 0)

    def of_module(module: Params) -> Params:
        if isinstance(module, Mapping) and set(module) == {"w", "b"}:
            bias = jnp.ravel(module["b"])
            return dict.fromkeys(module, row_sums(bias) / (bias.size * weight))
        return jax.tree_util.tree_map(
            lambda f: jnp.sum(f) / (weight * (f.shape[-1] if f.ndim else 1)), module
        )

    return {name: of_module(module) for name, module in fisher.items()}


def prior_precision(config: EVEConfig, n: Array) -> Any:
    """Returns the prior's term of the precision after n steps; for the unit prior in its units."""
    if config.prior == "paper":
        return config.omega * n * config.epsilon
    return 1.0 if config.prior == "unit" else config.prior_precision


def variances(config: EVEConfig, posterior: Posterior) -> Params:
    """Computes the posterior variance of each parameter with a diagonal Fisher.

    For the unit prior it is relative to the prior variance: one without data, and decreasing.

    Args:
      config: the hyper-parameters.
      posterior: the posterior.

    Returns:
      A tree like `posterior.fisher`.
    """
    chex.assert_rank([posterior.n, posterior.weight], 0)
    scale = config.omega * jnp.asarray(posterior.n, jnp.float32) / posterior.weight

    def relative(fisher: Array, unit: Array) -> jax.Array:
        return elementwise(lambda f: (unit + _TINY) / (scale * f + unit + _TINY), fisher)

    if config.prior == "unit":
        units = unit_information(posterior.fisher, posterior.weight)
        return jax.tree_util.tree_map(relative, posterior.fisher, units)
    prior = prior_precision(config, posterior.n)
    return jax.tree_util.tree_map(lambda fisher: 1.0 / (scale * fisher + prior), posterior.fisher)


def normals_like(key: jax.Array, tree: Params, leading: tuple[int, ...] = ()) -> Params:
    """Draws standard normals for all leaves of a tree with one call of the generator.

    Many small calls would cost more than the numbers themselves.

    Args:
      key: the key of all normals.
      tree: a tree of arrays or of shapes and dtypes.
      leading: axes in front of those of each leaf.

    Returns:
      A tree like `tree`, each leaf `[*leading, *leaf.shape]`.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    flat = jax.random.normal(key, (*leading, sum(leaf.size for leaf in leaves)), jnp.float32)
    normals = [
        flat[..., end - leaf.size : end].reshape(*leading, *leaf.shape)
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    return structure.unflatten(normals)


def perturbation(config: EVEConfig, posterior: Posterior, key: jax.Array) -> Params:
    """Draws `theta' - mean` for one sample theta', with the variances of `variances`.

    Args:
      config: the hyper-parameters.
      posterior: the posterior.
      key: the key of the sample.

    Returns:
      A tree like `posterior.fisher`.
    """
    return jax.tree_util.tree_map(
        lambda variance, z: jnp.sqrt(variance) * z,
        variances(config, posterior),
        normals_like(key, posterior.fisher),
    )


def sample(config: EVEConfig, posterior: Posterior, key: jax.Array) -> Params:
    """Draws one sample theta' from a diagonal posterior (paper, 'Posterior Sampling').

    The unit prior is scaled for each value and has no samples of weights: see
    `predictive.make_sampler`.

    Args:
      config: the hyper-parameters.
      posterior: the posterior.
      key: the key of the sample.

    Returns:
      Parameters, a tree like `posterior.mean`.

    Raises:
      ValueError: the config has the unit prior.
    """
    if config.prior == "unit":
        raise ValueError("prior: got 'unit', allowed for weight samples is constant or paper")
    return jax.tree_util.tree_map(jnp.add, posterior.mean, perturbation(config, posterior, key))
