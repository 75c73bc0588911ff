"""Selects the JAX device of a process: `--learner-device`."""

import os
import subprocess
import sys
from typing import Any

from eve_acme.errors import UsageError


def find(name: str) -> Any:
    """Returns the device with a name such as `gpu` or `cpu:1`; raises UsageError."""
    import jax

    platform, colon, index = name.partition(":")
    try:
        found = jax.devices(platform)
    except RuntimeError:  # JAX has no such platform here.
        found = []
    number = index if colon else "0"
    if not (number.isascii() and number.isdigit() and int(number) < len(found)):
        known = {device for kind in (None, "cpu") for device in jax.devices(kind)}
        allowed = ", ".join(sorted(map(label, known)))
        raise UsageError(f"--learner-device: got {name!r}, allowed is one of {allowed}")
    return found[int(number)]


def label(device: Any) -> str:
    """Returns the name of a device, as `find` takes it."""
    return f"{device.platform}:{device.id}"


def use(name: str) -> None:
    """Makes a device the default of this process; raises UsageError."""
    import jax

    jax.config.update("jax_default_device", find(name))


def stay_on_cpu() -> None:
    """Restricts this process to the CPU, so that JAX preallocates no memory of other devices."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def check_apart(name: str) -> None:
    """Calls `find` in a subprocess, so that this process reserves no memory; raises UsageError."""
    code = "import sys; from eve_acme.experiments import devices; devices.find(sys.argv[1])"
    environ = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        capture_output=True,
        text=True,
        env={**environ, "PYTHONPATH": path},
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1]
        raise UsageError(said.partition("UsageError: ")[2] or said)
