"""The counter: assigns the run's episodes to actors and records their results.

Every episode of the run has a ticket. An actor that restarts gets its unreported ticket again. So a
run has exactly the requested number of episodes, its first episodes are random for any number of
actors, and a repeated call changes nothing. If an actor does not come back, another actor gets a
new ticket in its place.
"""

import threading
import time
from typing import Any

from eve_acme.distributed.node import Node, Run
from eve_acme.replay import journal

GONE_SECONDS = 60.0
"""The ticket of an actor that has made no call for so long no longer counts as in play."""


FAREWELL_SECONDS = 3.0
"""How long the counter keeps answering after the end of the run, so that actors learn of it."""

WAIT, OVER = -1, -2
"""Returned instead of a ticket. WAIT: none is free now, one may be later. OVER: the run ended."""


class Counter(Node):
    """Counts episodes. Its journal outlives the process and is fsynced every second."""

    def __init__(self, run: Run):
        super().__init__("counter")
        self._limit = run.plan.episodes
        self._actors = run.actors
        self._lock = threading.Lock()
        self._tickets: dict[tuple[int, int], int] = {}
        self._unreported: set[tuple[int, int]] = set()  # Small, unlike the set of all tickets.
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
        """Assigns a ticket to an actor's episode.

        Args:
          actor: index of the actor.
          index: index of the episode among the actor's own.

        Returns:
          The number of the episode in the run; or WAIT, or OVER.
        """
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
        """Records an episode that is stored in replay; ignores repeated reports.

        Args:
          actor: index of the actor.
          index: index of the episode among the actor's own.
          episode: its summary.
        """
        with self._lock:
            self._heard[actor] = time.monotonic()
            if (actor, index) not in self._reported:
                self._record("report", actor, index, episode)

    def lease(self, holder: str) -> int | None:
        """Returns an index for an actor that starts without one; None if all are in use.

        A known holder gets its previous index, others the lowest index that made no call lately.
        Two actors can get the same index if a host was disconnected for long. That wastes work but
        does no harm, since replay stores an episode once.
        """
        with self._lock:
            now = time.monotonic()
            index = self._leases.get(holder)
            if index is None:
                used = {i for i, heard in self._heard.items() if heard > now - GONE_SECONDS}
                if now - self._started < GONE_SECONDS:  # The counter itself may have restarted.
                    used |= {actor for actor, _ in self._tickets}
                index = next((i for i in range(self._actors) if i not in used), None)
                if index is None:
                    return None
                self._record("lease", index, 0, holder)
            self._heard[index] = now
            return index

    def alive(self, actor: int) -> None:
        """Records that an actor is alive while it blocks on replay."""
        self._heard[actor] = time.monotonic()

    def ended(self, actor: int) -> bool:
        """Records that an actor is alive; returns whether it must stop because the run ends."""
        self._heard[actor] = time.monotonic()
        if self._closed:
            self._told.add(actor)
        return self._closed

    def close(self) -> None:
        """Assigns no more tickets, since the run ends."""
        self._closed = True

    def refuse(self, why: str) -> None:
        """Records why the run must end: an actor's environment returned invalid data."""
        self._refused = self._refused or why

    def totals(self) -> dict[str, Any]:
        """Returns counts of the run.

        Returns:
          `in_play` and `ended`, numbers of episodes; `steps`, those of ended episodes; `quiet`,
          whether the counter is closed and every active actor knows it; `failed`, the reason that
          `refuse` was given, or None.
        """
        with self._lock:
            return dict(
                in_play=self._in_play(),
                ended=len(self._episodes),
                steps=self._steps,
                quiet=self._closed and self._all_know(),
                failed=self._refused,
            )

    def episodes(self, start: int = 0) -> list[dict[str, Any]]:
        """Returns the reports from number `start` on, in order of arrival."""
        with self._lock:
            return self._episodes[start:]

    def silence(self) -> dict[int, float]:
        """Returns the seconds since the last call of each actor."""
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
        self._journal.sync()  # Not closed: a call in progress may still append.

    def _all_know(self) -> bool:
        """Returns whether every active actor was told that the run is over."""
        latest = time.monotonic() - FAREWELL_SECONDS
        return all(i in self._told or heard < latest for i, heard in list(self._heard.items()))

    def _in_play(self) -> int:
        """Returns the number of tickets whose actors may still report."""
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
