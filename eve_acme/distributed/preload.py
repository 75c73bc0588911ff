"""Modules that the fork server imports before it forks; starts no thread and uses no device."""

import contextlib
import importlib
import io

MODULES = (
    "eve_acme.agent.builder",  # First: it repairs JAX for Acme.
    "acme.wrappers",
    "courier",
    "launchpad",
    "reverb",
    "tensorflow",
    "eve_acme.distributed.program",
    *(f"eve_acme.distributed.{name}" for name in ("actor", "counter", "learner", "replay")),
    "eve_acme.distributed.durability",
    "acme.environment_loop",
    "eve_acme.distributed.coordinator",
    "eve_acme.experiments.plots",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
)

with contextlib.redirect_stderr(io.StringIO()):  # Gym prints a notice.
    for module in MODULES:
        importlib.import_module(module)
