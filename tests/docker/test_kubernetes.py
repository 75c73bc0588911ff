"""The manifests, against Kubernetes' own schemas. No cluster is at hand: validated, not run."""

import pathlib
import re
import subprocess
import sys

import pytest

from eve_acme.config import EVEConfig

FOLDER = pathlib.Path(__file__).parent.parent.parent / "eve_acme" / "cli" / "kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")


@pytest.fixture(scope="module")
def validator(tmp_path_factory):
    """In an environment of its own: what it needs has no place in the lock."""
    folder = tmp_path_factory.mktemp("validator")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "-q", "kubernetes-validate"], check=True)
    return folder / "bin/kubernetes-validate"


@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_manifests_are_valid(validator, version):
    words = [validator, "--strict", "-k", version, *FILES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count(" passed for resource ") == 15, said


def test_every_pod_is_restricted_and_all_files_are_applied():
    text = "".join(path.read_text() for path in FILES)
    pods = text.count("image: eve-acme")
    assert pods == 6
    for line in (
        "runAsNonRoot: true",
        "allowPrivilegeEscalation: false",
        "readOnlyRootFilesystem: true",
        "capabilities: {drop: [ALL]}",
        "automountServiceAccountToken: false",
        "livenessProbe:",
        "requests: {cpu:",
    ):
        assert text.count(line) == pods, line
    applied = (FOLDER / "kustomization.yaml").read_text()
    assert all(f"- {path.name}\n" in applied for path in FILES)


def test_replay_and_learner_have_room_for_all_that_replay_may_hold():
    """As docker/README.md sizes them: a gigabyte and, after a restart, 3 x `replay_megabytes`."""
    text = (FOLDER / "replay-and-learner.yaml").read_text()
    limits = [int(number) for number in re.findall(r"limits: {memory: (\d+)Mi}", text)]
    assert len(limits) == 2
    assert min(limits) > 1024 + 3 * EVEConfig().replay_megabytes
