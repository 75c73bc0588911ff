"""Figures from stored tables: functions of a `Request` that raise UsageError without data."""

from collections.abc import Callable
from typing import Any, NamedTuple

from eve_acme.experiments.figures import style
from eve_acme.experiments.figures.curves import curves, spread
from eve_acme.experiments.figures.deep_sea import encodings, failures, sizes
from eve_acme.experiments.figures.request import Request
from eve_acme.experiments.figures.settings import ablations, sensitivity
from eve_acme.experiments.figures.summary import intervals, radar


class Figure(NamedTuple):
    """A kind of figure: its heading on a page, and the function that draws it."""

    title: str
    draw: Callable[[Request], Any]


FIGURES = dict(
    radar=Figure("Capabilities", radar),
    scores=Figure("bsuite's scores", intervals),
    failures=Figure("Deep Sea: bad episodes", failures),
    sizes=Figure("Deep Sea: sizes", sizes),
    encodings=Figure("Deep Sea: encodings", encodings),
    spread=Figure("Visits against posterior spread", spread),
    ablations=Figure("Ablations", ablations),
    sensitivity=Figure("Sensitivity", sensitivity),
    curves=Figure("Learning curves", curves),
)


def draw(name: str, request: Request) -> Any:
    """Draws one of `FIGURES` in the house style; raises UsageError."""
    with style.house():
        return FIGURES[name].draw(request)


__all__ = ["FIGURES", "Request", "draw"]
