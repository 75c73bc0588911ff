"""The image, built once, by an engine of the tests' own. Only './eve test --docker' gets here."""

import os
import pathlib
import sys
import tempfile
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import engine as engine_lib

from eve_acme.distributed import hosts

ROOT = pathlib.Path(__file__).parent.parent.parent
collect_ignore_glob = [] if os.environ.get("EVE_TEST_DOCKER") else ["test_*.py"]


@pytest.fixture(scope="session")
def work():
    """A folder for engines' data: EVE_DOCKER_DIR, which is kept, or a new one, which is not."""
    if hosts.why_not():
        pytest.fail(f"cannot be tested here: {hosts.why_not()}")
    kept = os.environ.get("EVE_DOCKER_DIR")
    folder = pathlib.Path(kept or tempfile.mkdtemp(prefix="eve-docker-"))
    yield folder
    if not kept:
        engine_lib.remove(folder)


@pytest.fixture(scope="session")
def image(work):
    """The folder of an engine that has the image."""
    started = time.monotonic()
    engine_lib.install()
    engine = engine_lib.Engine(work / "one")
    try:
        engine.start()
        if engine.docker("image", "inspect", "python:3.10-slim", check=False).returncode:
            engine_lib.make_base(engine, work)
        print(f"base image after {time.monotonic() - started:.0f} s")
        engine_lib.build(engine, ROOT)
        print(f"image after {time.monotonic() - started:.0f} s")
        engine.docker("container", "prune", "-f")
    finally:
        engine.stop()
    return work / "one"
