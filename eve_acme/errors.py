"""The errors that users see."""


class _Detailed(Exception):
    """An error of one line; `details` is a traceback for whoever has to mend its cause."""

    def __init__(self, message: object, details: str = ""):
        super().__init__(str(message))
        self.details = details or getattr(message, "details", "")


class UsageError(_Detailed):
    """Bad input: the message names the field, the value and what is allowed. Exit code 2."""


class InputError(_Detailed, ValueError):
    """Data from outside do not fit. The message names what came, what is allowed, and where."""


class Diverged(ArithmeticError):
    """The loss is not finite. `path` is the file that holds the rounds of batches that made it."""

    def __init__(self, message: str, path: str):
        super().__init__(message)
        self.path = path


class ConfigError(ValueError):
    """A hyper-parameter has a value that is not allowed. The message names the field, the value and
    the allowed values."""
