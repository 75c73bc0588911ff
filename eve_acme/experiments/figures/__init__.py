"""Figures from stored tables: functions of a `Request` that raise UsageError without data."""

from collections.abc import Callable
from typing import Any

from eve_acme.experiments.figures import style
from eve_acme.experiments.figures.curves import curves, spread
from eve_acme.experiments.figures.deep_sea import encodings, failures, sizes
from eve_acme.experiments.figures.request import Request
from eve_acme.experiments.figures.settings import ablations, sensitivity
from eve_acme.experiments.figures.summary import intervals, radar

FIGURES: dict[str, Callable[[Request], Any]] = dict(
    radar=radar,
    scores=intervals,
    failures=failures,
    sizes=sizes,
    encodings=encodings,
    spread=spread,
    ablations=ablations,
    sensitivity=sensitivity,
    curves=curves,
)


def draw(name: str, request: Request) -> Any:
    """Draws one of `FIGURES` in the house style; raises UsageError."""
    with style.house():
        return FIGURES[name](request)


__all__ = ["FIGURES", "Request", "draw"]
