"""Which of JAX's devices a process computes on: `--learner-device`."""

import os
import subprocess
import sys
from typing import Any

from eve_acme.errors import UsageError


def find(name: str) -> Any:
    """The device of a name such as `gpu` or `cpu:1`; raises UsageError."""
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
    """The name by which `find` finds it."""
    return f"{device.platform}:{device.id}"


def use(name: str) -> None:
    """Lets this process compute on a device; raises UsageError."""
    import jax

    jax.config.update("jax_default_device", find(name))


def stay_on_cpu() -> None:
    """Keeps this process off other devices, whose memory JAX would reserve for it."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def check_apart(name: str) -> None:
    """`find` in another process, so that this one reserves nothing; raises UsageError."""
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
