"""The one error that a user sees as a single line."""


class UsageError(Exception):
    """Bad input: the message names the field, the value and what is allowed. Exit code 2."""
