"""The errors that users see."""


class UsageError(Exception):
    """Bad input: the message names the field, the value and what is allowed. Exit code 2.

    Attributes:
      details: the traceback of third-party code that caused the error; empty if there is none.
    """

    def __init__(self, message: object, details: str = ""):
        super().__init__(str(message))
        self.details = details or getattr(message, "details", "")


class InputError(UsageError, ValueError):
    """Data from an environment or a file do not fit; the message also names their source."""


class Diverged(ArithmeticError):
    """The loss is not finite. `path` is the file that holds the rounds of batches that made it."""

    def __init__(self, message: str, path: str):
        super().__init__(message)
        self.path = path


class ConfigError(UsageError, ValueError):
    """A hyper-parameter has a value that is not allowed. The message names the field, the value and
    the allowed values."""
