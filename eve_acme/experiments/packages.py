"""Optional packages: raises an error of one line that says how to install a missing one."""

import importlib.util

from eve_acme.errors import UsageError

ACME = ("acme", "reverb", "launchpad")
_WITH_ACME = "Python 3.10 on Linux x86_64 and pip install 'eve-acme[acme]', or ./eve in a checkout"
_INSTALL = {
    **dict.fromkeys(ACME, _WITH_ACME),
    "tensorflow": "pip install 'eve-acme[tensorboard]'",
    "rlax": "pip install 'eve-acme[baselines]'",
    "wandb": "pip install 'eve-acme[wandb]'",
}


def require(option: str, *packages: str) -> None:
    """Raises UsageError unless all packages of an option or a command are installed.

    Args:
      option: the option or command, as the user types it.
      *packages: modules to look for; none is imported.
    """
    for package in packages:
        if not _is_there(package):
            raise UsageError(f"{option}: allowed once {package} is installed ({_INSTALL[package]})")


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # A parent package is missing.
        return False
    except ValueError:  # A loaded module without a spec, such as a stub.
        return True
