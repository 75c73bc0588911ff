"""Strict parsers of numbers. Python's `int` and `float` also accept `1_0`, ` 1`, `nan` and the
digits of other scripts, which are usually typing errors."""

import argparse
import re

MOST_DIGITS = 18
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


class NoNumber(argparse.ArgumentTypeError, ValueError):
    """A text is not a number; argparse prints the message of an ArgumentTypeError."""


def whole(text: str) -> int:
    """Parses a whole number in ASCII digits; raises NoNumber."""
    if not _WHOLE.fullmatch(text) or len(text.lstrip("+-0")) > MOST_DIGITS:
        raise NoNumber(f"got {text!r}, allowed is a whole number of up to {MOST_DIGITS} digits")
    return int(text)


def number(text: str) -> float:
    """Parses a finite number in ASCII digits; raises NoNumber."""
    if not _NUMBER.fullmatch(text) or abs(float(text)) == float("inf"):
        raise NoNumber(f"got {text!r}, allowed is a finite number such as 0.5 or 1e-3")
    return float(text)
