"""The variance of returns, estimated from repeated transitions.

The noisier a return, the less a visit says about the value. With a prior standard deviation p of
the value and a variance v of returns, the Fisher information of a visit in units of the prior is
`p^2 / v`, capped at `omega`. v is estimated from repeats: the same action in the same input again.
In a deterministic environment a repeat has the same reward and the same next input, so v stays
exactly zero, however far learning has come. (Squared TD errors would not do: they also contain the
error that learning has yet to remove.)

- Rewards of a repeated pair vary around their mean: Welford's algorithm sums the squares.
- A repeat with another next input than the last one changes the return by the difference of the
  two inputs' values. It counts as one unit of the scale of returns.

Each estimate is shrunk towards a wider one, which counts as one more repeat,

    v(all) = squares / repeats,   v(input) = (v(all) + squares) / (1 + repeats) over all actions,
    v(pair) = (v(input) + squares) / (1 + repeats),   squares = those of rewards + elsewhere / 2,

in units of the scale of returns. A pair tried once has the variance of the other actions in its
input; an input without repeats has the average variance of all repeats.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from eve_acme.types import HostArray

VISITS, REPEATS, SQUARES, ELSEWHERE = range(4)
"""Columns of a tally: visits, repeats, squared deviations of rewards, repeats with another next
input."""
ONCE = np.array([1.0, 0.0, 0.0, 0.0])
"""The tally of a first visit. Read-only."""
ONCE.flags.writeable = False


class _Pair(NamedTuple):
    visits: int
    mean: float
    successor: bytes


class Repeats:
    """Detects repeated transitions and measures how they differ from earlier ones."""

    def __init__(self) -> None:
        self._pairs: dict[bytes, _Pair] = {}

    def add(self, x: Any, action: int, r_t: float, next_x: Any) -> HostArray:
        """Records one transition.

        Args:
          x: the input, a vector `[d]` or a SparseInput `[K]`.
          action: the action.
          r_t: the reward.
          next_x: the next input; () at the end of an episode.

        Returns:
          The transition's tally `[4]`: one visit and, for a repeat, its deviations.
        """
        key, successor = _digest(x, action), _digest(next_x)
        before = self._pairs.get(key)
        if before is None:
            self._pairs[key] = _Pair(1, r_t, successor)
            return ONCE
        mean = before.mean + (r_t - before.mean) / (before.visits + 1)
        self._pairs[key] = _Pair(before.visits + 1, mean, successor)
        squares = (r_t - before.mean) * (r_t - mean)
        return np.array([1.0, 1.0, squares, float(successor != before.successor)])

    def save(self) -> dict[str, Any]:
        """Returns the whole state as arrays."""
        pairs = self._pairs.values()
        return dict(
            keys=np.frombuffer(b"".join(self._pairs), np.uint64),
            successors=np.frombuffer(b"".join(pair.successor for pair in pairs), np.uint64),
            counts=np.array([pair.visits for pair in pairs], np.int64),
            means=np.array([pair.mean for pair in pairs], np.float64),
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        columns = zip(
            *(saved[name] for name in ("keys", "counts", "means", "successors")), strict=True
        )
        self._pairs = {
            key.tobytes(): _Pair(int(count), float(mean), successor.tobytes())
            for key, count, mean, successor in columns
        }


def _digest(x: Any, action: int = -1) -> bytes:
    """Hashes an input and an action into eight bytes."""
    hashed = hashlib.blake2b(action.to_bytes(8, "little", signed=True), digest_size=8)
    for part in x if isinstance(x, tuple) else (x,):
        hashed.update(np.ascontiguousarray(part).tobytes())
    return hashed.digest()


def pooled(tally: HostArray, scale: float) -> float:
    """Estimates the variance of returns over all repeats, in squared units of the scale of returns.

    Args:
      tally: `[4]`, the sum over all pairs.
      scale: the scale of returns; zero until the first non-zero reward.

    Returns:
      v(all).
    """
    return float(_squares(tally, scale) / max(1.0, tally[REPEATS]))


def information(
    tally: HostArray, pool: float, scale: float, limit: float, prior_std: float
) -> HostArray:
    """Computes the Fisher information of one visit of each action, in units of the prior.

    Args:
      tally: `[..., num_actions, 4]`, tallies of the actions in an input.
      pool: v(all), see `pooled`.
      scale: the scale of returns.
      limit: omega, the information of a visit without noise.
      prior_std: the prior standard deviation of values, in units of `scale`.

    Returns:
      `[..., num_actions]`, at most `limit`.
    """
    of_inputs = _shrunk_towards(pool, tally.sum(axis=-2), scale)[..., None]
    return limit / (1.0 + limit / prior_std**2 * _shrunk_towards(of_inputs, tally, scale))


def _shrunk_towards(wider: Any, tally: HostArray, scale: float) -> Any:
    return (wider + _squares(tally, scale)) / (1.0 + tally[..., REPEATS])


def _squares(tally: HostArray, scale: float) -> Any:
    rewards = tally[..., SQUARES] / scale**2 if scale > 0.0 else 0.0
    return rewards + 0.5 * tally[..., ELSEWHERE]
