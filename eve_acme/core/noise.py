"""How noisy returns are, from transitions that repeat.

A visit says less about a value the noisier the return is that it saw. With a prior standard
deviation p of the value and a variance v of returns, the Fisher information of a visit in units of
the prior is `p^2 / v`; `omega` is the most that it can be. v is learnt from repeats: the same
action in the same input again. In a deterministic world a repeat gives the same reward and leads to
the same input, whatever has been learnt so far, so that v stays exactly zero there. (Squared TD
errors would not do: they also hold what is still to be learnt.)

- Rewards of a repeated pair vary around their mean: their squares are summed (Welford).
- A repeat that leads elsewhere than the last one changes the return by what the two inputs are
  worth to each other. It counts as one unit of the scale of returns.

A mean over many repeats is drawn towards a wider one as if that were one more of its own,

    v(all) = squares / repeats,   v(input) = (v(all) + squares) / (1 + repeats) over all actions,
    v(pair) = (v(input) + squares) / (1 + repeats),   squares = those of rewards + elsewhere / 2,

in units of the scale of returns: a pair that was tried once is as noisy as the other actions of its
input are, and these, if they are new too, as repeats are on average.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

VISITS, REPEATS, SQUARES, ELSEWHERE = range(4)
"""Columns of a tally."""
ONCE = np.array([1.0, 0.0, 0.0, 0.0])
"""The tally of a pair that was visited once. (Not to be written to.)"""
ONCE.flags.writeable = False


class _Pair(NamedTuple):
    visits: int
    mean: float
    successor: bytes


class Repeats:
    """Tells which transitions are repeats, and how much they differ."""

    def __init__(self) -> None:
        self._pairs: dict[bytes, _Pair] = {}

    def add(self, x: Any, action: int, r_t: float, next_x: Any) -> np.ndarray:
        """The tally `[4]` of one transition: one visit, and what it differs by if it is a repeat.

        Args:
          x: the input, a vector `[d]` or a SparseInput `[K]`.
          action: the action.
          r_t: the reward.
          next_x: the input that followed; () at the end of an episode.
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
        """Everything, as arrays."""
        pairs = self._pairs.values()
        return dict(
            keys=np.frombuffer(b"".join(self._pairs), np.uint64),
            successors=np.frombuffer(b"".join(pair.successor for pair in pairs), np.uint64),
            counts=np.array([pair.visits for pair in pairs], np.int64),
            means=np.array([pair.mean for pair in pairs], np.float64),
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        columns = zip(
            *(saved[name] for name in ("keys", "counts", "means", "successors")), strict=True
        )
        self._pairs = {
            key.tobytes(): _Pair(int(count), float(mean), successor.tobytes())
            for key, count, mean, successor in columns
        }


def _digest(x: Any, action: int = -1) -> bytes:
    """Eight bytes that stand for an input and an action."""
    hashed = hashlib.blake2b(action.to_bytes(8, "little", signed=True), digest_size=8)
    for part in x if isinstance(x, tuple) else (x,):
        hashed.update(np.ascontiguousarray(part).tobytes())
    return hashed.digest()


def pooled(tally: np.ndarray, scale: float) -> float:
    """The variance of returns over all repeats, in squared units of the scale of returns.

    Args:
      tally: `[4]`, of all pairs.
      scale: of returns; zero until a reward was seen.
    """
    return float(_squares(tally, scale) / max(1.0, tally[REPEATS]))


def information(
    tally: np.ndarray, pool: float, scale: float, limit: float, prior_std: float
) -> np.ndarray:
    """The Fisher information of a visit of each action in an input, in units of the prior.

    Args:
      tally: `[..., num_actions, 4]`.
      pool: `pooled`.
      scale: of returns.
      limit: omega, of a visit without noise.
      prior_std: the prior standard deviation of values, in units of `scale`.

    Returns:
      `[..., num_actions]`, at most `limit`.
    """
    of_inputs = _drawn_towards(pool, tally.sum(axis=-2), scale)[..., None]
    return limit / (1.0 + limit / prior_std**2 * _drawn_towards(of_inputs, tally, scale))


def _drawn_towards(wider: Any, tally: np.ndarray, scale: float) -> Any:
    return (wider + _squares(tally, scale)) / (1.0 + tally[..., REPEATS])


def _squares(tally: np.ndarray, scale: float) -> Any:
    rewards = tally[..., SQUARES] / scale**2 if scale > 0.0 else 0.0
    return rewards + 0.5 * tally[..., ELSEWHERE]
