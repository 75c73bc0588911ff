"""The counter: gives out the run's episodes, and takes note of how they went.

Every episode of the run has a ticket. An actor that was given one and died is given the same one
again, so a run has exactly as many episodes as it was asked for, its first ones are random whatever
the number of actors, and a call that is made twice changes nothing. The ticket of an actor that
does not come back is given to another.
"""

import threading
import time
from typing import Any

from eve_acme.distributed.node import Node, Run
from eve_acme.replay import journal

GONE_SECONDS = 60.0
"""An actor that has not been heard of for so long does not hold its ticket any more."""


FAREWELL_SECONDS = 3.0
"""How long a counter whose run has ended stays, for actors to hear of it."""

WAIT, OVER = -1, -2
"""In place of a ticket: all are given out, and one may come back; the run has ended."""


class Counter(Node):
    """Counts episodes; what it was told outlives its process, and is fsynced every second."""

    def __init__(self, run: Run):
        super().__init__("counter")
        self._limit = run.plan.episodes
        self._actors = run.actors
        self._lock = threading.Lock()
        self._tickets: dict[tuple[int, int], int] = {}
        self._unreported: set[tuple[int, int]] = set()  # Few, however many tickets there were.
        self._episodes: list[dict[str, Any]] = []
        self._reported: set[tuple[int, int]] = set()
        self._steps = 0
        self._closed = False
        self._refused: str | None = None
        self._heard: dict[int, float] = {}
        self._leases: dict[str, int] = {}
        self._told: set[int] = set()
        self._started = time.monotonic()
        path = run.state / "counter.journal"
        self._journal = journal.Journal(path, run.plan.identity)
        for _, record in journal.read(path):
            self._apply(*record)

    def ticket(self, actor: int, index: int) -> int:
        """Which episode of the run the actor's episode `index` is; or WAIT, or OVER."""
        with self._lock:
            self._heard[actor] = time.monotonic()
            if self._closed:
                self._told.add(actor)
                return OVER
            ticket = self._tickets.get((actor, index))
            if ticket is None:
                if len(self._episodes) + self._in_play() >= self._limit:
                    return WAIT
                ticket = len(self._tickets)
                self._record("ticket", actor, index, ticket)
            return ticket

    def report(self, actor: int, index: int, episode: dict[str, Any]) -> None:
        """Takes note of an episode that has reached replay."""
        with self._lock:
            self._heard[actor] = time.monotonic()
            if (actor, index) not in self._reported:
                self._record("report", actor, index, episode)

    def lease(self, holder: str) -> int | None:
        """An index for an actor that came without one; None if there are too many.

        The one it had, or the lowest that nobody was heard under lately. Two actors may come to
        have the same one, when a host was cut off for long: that is wasted work, and does no harm,
        since replay takes an episode once.
        """
        with self._lock:
            now = time.monotonic()
            index = self._leases.get(holder)
            if index is None:
                used = {i for i, heard in self._heard.items() if heard > now - GONE_SECONDS}
                if now - self._started < GONE_SECONDS:  # It may have been away only itself.
                    used |= {actor for actor, _ in self._tickets}
                index = next((i for i in range(self._actors) if i not in used), None)
                if index is None:
                    return None
                self._record("lease", index, 0, holder)
            self._heard[index] = now
            return index

    def alive(self, actor: int) -> None:
        """An actor that waits for room in replay is there."""
        self._heard[actor] = time.monotonic()

    def ended(self, actor: int) -> bool:
        """An actor is there; whether it is to stop within its episode, since the run is to end."""
        self._heard[actor] = time.monotonic()
        if self._closed:
            self._told.add(actor)
        return self._closed

    def close(self) -> None:
        """No more tickets: the run is to end."""
        self._closed = True

    def refuse(self, why: str) -> None:
        """An actor's environment gave what cannot be learnt from: the run is to end."""
        self._refused = self._refused or why

    def totals(self) -> dict[str, Any]:
        """Episodes that are in play and that have ended, the steps of those, and why it failed."""
        with self._lock:
            return dict(
                in_play=self._in_play(),
                ended=len(self._episodes),
                steps=self._steps,
                quiet=self._closed and self._all_know(),
                failed=self._refused,
            )

    def episodes(self, start: int = 0) -> list[dict[str, Any]]:
        """Reports in the order of their coming, from the given one on."""
        with self._lock:
            return self._episodes[start:]

    def silence(self) -> dict[int, float]:
        """For each actor the seconds since it was last heard of."""
        now = time.monotonic()
        return {actor: now - heard for actor, heard in list(self._heard.items())}

    def run(self) -> None:
        synced = -1
        while not self._stop.wait(1.0):
            if self._journal.end != synced:
                synced = self._journal.end
                self._journal.sync()
        deadline = time.monotonic() + FAREWELL_SECONDS
        while self._closed and not self._all_know() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._journal.sync()  # Not closed: a call that is still answered may write to it.

    def _all_know(self) -> bool:
        """Whether every actor that is there was told that the run is over."""
        latest = time.monotonic() - FAREWELL_SECONDS
        return all(i in self._told or heard < latest for i, heard in list(self._heard.items()))

    def _in_play(self) -> int:
        """Tickets of actors that may still report."""
        latest = time.monotonic() - GONE_SECONDS
        return sum(self._heard.get(actor, self._started) > latest for actor, _ in self._unreported)

    def _record(self, kind: str, actor: int, index: int, value: Any) -> None:
        self._journal.append((kind, actor, index, value))
        self._apply(kind, actor, index, value)

    def _apply(self, kind: str, actor: int, index: int, value: Any) -> None:
        if kind == "ticket":
            self._tickets[actor, index] = value
            self._unreported.add((actor, index))
        elif kind == "lease":
            self._leases = {h: i for h, i in self._leases.items() if i != actor} | {value: actor}
        else:
            self._reported.add((actor, index))
            self._unreported.discard((actor, index))
            self._steps += value["length"]
            self._episodes.append(dict(value, actor=actor, index=index))
