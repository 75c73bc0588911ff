"""`eve cluster manifests`: a run on Kubernetes, with requests and limits that follow its config.

The files of `kubernetes/` are the manifests of the default run; those of other runs differ in a few
values. They are specific to no vendor and no queueing system: they set no class, scheduler, queue
or `suspend`. A kustomization can add the labels that Kueue, Volcano and similar systems need.
"""

import math
import pathlib
import re

from eve_acme.config import EVEConfig
from eve_acme.errors import UsageError

FOLDER = pathlib.Path(__file__).parent / "kubernetes"
NODE_MEGABYTES = 700
"""Memory of a node that stores no steps."""
PROCESS_MEGABYTES = 1024
"""Memory of a node that stores steps, without the steps; the limit includes it twice."""
USUAL = {"learner": 1.0, "replay": 1.5}
"""Requested memory for steps, in multiples of `replay_megabytes`; measured in docker/README.md."""
MOST = 3.0
"""Factor of `replay_megabytes` in the memory limit: a restarted learner reads all of replay."""
JOURNAL_FACTOR = 5
"""Disk for the log of all steps, as a multiple of the memory for them."""


def files(
    launch_words: str, actors: int, replay_megabytes: float, image: str, namespace: str
) -> dict[str, str]:
    """Returns the manifests of a run.

    Args:
      launch_words: the arguments of 'eve launch' that describe the run.
      actors: number of actors to start.
      replay_megabytes: maximum size of the steps in the memory of the learner and of replay.
      image: name of the image, optionally with a tag or a digest.
      namespace: namespace of all objects.

    Returns:
      The files that `kubectl apply -k` needs: contents by name.
    """
    default = _values("deep_sea/0", 2, EVEConfig().replay_megabytes, "eve-acme", "eve")
    wanted = _values(launch_words, actors, replay_megabytes, image, namespace)
    changed = dict(zip(default, wanted, strict=True))
    pattern = re.compile("|".join(map(re.escape, changed)))
    return {
        path.name: pattern.sub(lambda match: changed[match[0]], path.read_text())
        for path in sorted(FOLDER.glob("*.yaml"))
    }


def _values(
    words: str, actors: int, replay_megabytes: float, image: str, namespace: str
) -> list[str]:
    """Returns the parts of the manifests that depend on the arguments of `files`."""
    replay, limit = memory_of("replay", replay_megabytes)
    learner, _ = memory_of("learner", replay_megabytes)
    disk = max(1024, JOURNAL_FACTOR * math.ceil(replay_megabytes))
    return [
        f"  name: {namespace}\n  labels: {{pod-security",
        f"namespace: {namespace}\n",
        "EVE_LAUNCH: '" + " ".join(words.split()).replace("'", "''") + "'",
        f"parallelism: {actors}\n",
        f'cpu: "1", memory: {replay}Mi',
        f'cpu: "1", memory: {learner}Mi',
        f"limits: {{memory: {limit}Mi",
        f"storage: {disk}Mi",
        _image(image),
    ]


def memory_of(role: str, replay_megabytes: float) -> tuple[int, int]:
    """Returns a node's memory request and memory limit, in megabytes.

    Args:
      role: the node's role.
      replay_megabytes: maximum size of the steps in the memory of the learner and of replay.
    """
    if role not in USUAL:
        return NODE_MEGABYTES, NODE_MEGABYTES
    usual = PROCESS_MEGABYTES + math.ceil(USUAL[role] * replay_megabytes)
    return usual, 2 * PROCESS_MEGABYTES + math.ceil(MOST * replay_megabytes)


def check_namespace(name: str) -> None:
    """Raises UsageError unless Kubernetes accepts the name."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise UsageError(
            f"--name: got {name!r}, allowed are up to 63 small letters, digits and dashes"
        )


def _image(image: str) -> str:
    """Returns the image as fields of kustomize's `images`; raises UsageError."""
    match = re.fullmatch(
        r"([\w.\-/]+(?::\d+/[\w.\-/]+)?)(?::([\w.-]+)|@(sha256:[0-9a-f]{64}))?", image
    )
    if match is None:
        raise UsageError(f"--image: got {image!r}, allowed is NAME, NAME:TAG or NAME@sha256:DIGEST")
    name, tag, digest = match.groups()
    last = f"digest: {digest}" if digest else f'newTag: "{tag or "latest"}"'
    return f"    newName: {name}\n    {last}"
