"""Fields of a config: each with a group, a help text and its allowed values."""

import dataclasses
from typing import Any

from eve_acme.errors import ConfigError


def option(
    group: str, default: Any, help: str, least: float | None = None, most: float | None = None
) -> Any:
    """Declares a field.

    Args:
      group: the heading under which help texts list it.
      default: its default.
      help: its meaning.
      least: for numbers, the smallest allowed value.
      most: for numbers, the largest allowed value.
    """
    metadata = dict(group=group, help=help, least=least, most=most)
    return dataclasses.field(default=default, metadata=metadata)


def check(field: dataclasses.Field, value: Any, choices: tuple[str, ...] = ()) -> None:
    """Raises ConfigError unless `value` is allowed for `field`.

    Args:
      field: a field that `option` declared.
      value: its value.
      choices: the allowed values of a field that selects a variant.
    """
    kind = type(field.default)

    def refuse(allowed: str) -> None:
        raise ConfigError(f"{field.name}: got {value!r}, allowed is {allowed}")

    if choices:
        if value not in choices:
            refuse("one of " + ", ".join(choices))
    elif kind is bool:
        if not isinstance(value, bool):
            refuse("true or false")
    else:
        least, most = field.metadata["least"], field.metadata["most"]
        whole = kind in (int, tuple)
        span = f"{'a whole number' if whole else 'a number'} from {least:g} to {most:g}"
        if kind is tuple:
            span = f"one or more of {span}"
        numbers = value if kind is tuple else (value,)
        if not isinstance(numbers, tuple) or not numbers:
            refuse(span)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int if whole else (int, float)):
                refuse(span)
            if not least <= number <= most:  # Refuses NaN too.
                refuse(span)
