"""`eve cluster manifests`: a run on Kubernetes, with requests and limits that follow its config.

The manifests are specific to no vendor and no queueing system: they set no class, scheduler, queue
or `suspend`. A kustomization can add the labels that Kueue, Volcano and similar systems need.
"""

import math
import re
import textwrap
from typing import Any

from eve_acme.cli import manifest_templates as templates
from eve_acme.cli.node import PORTS
from eve_acme.errors import UsageError

METRICS_PORT = 7006
_METRICS_WORDS = ["--metrics-port", f'"{METRICS_PORT}"', "--metrics-host", "0.0.0.0"]
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

_ABOUT = {
    "counter": "The counter numbers the episodes and records them.",
    "evaluator": "The evaluator plays greedy episodes.",
    "replay": "Replay: a Reverb server and its log of all steps.",
    "learner": "The learner, with its checkpoints on its volume.",
}
_FILE_ALIVE = """exec: {command: [sh, -c, 'test -n "$(find /tmp/alive -mmin -2)"']}"""


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
    megabytes = math.ceil(replay_megabytes)

    def service(role: str, **more: Any) -> str:
        return _service(role, *memory_of(role, replay_megabytes), **more)

    services = {
        "counter-and-evaluator.yaml": [service("counter"), service("evaluator")],
        "replay-and-learner.yaml": [
            service("replay", cpu='"1"', disk=max(1024, JOURNAL_FACTOR * megabytes)),
            service("learner", cpu='"1"'),
        ],
    }
    texts = {
        "run.yaml": templates.RUN.format(
            namespace=namespace,
            words=_quoted(launch_words),
            last=max(PORTS.values()),
            metrics=METRICS_PORT,
        ),
        **{name: templates.SERVICES + "---\n".join(parts) for name, parts in services.items()},
        "jobs.yaml": templates.JOBS
        + _job("coordinator", 20, ["coordinator", *_METRICS_WORDS], claim=True)
        + "---\n"
        + templates.ACTORS
        + _job("actor", 100, ["actor"], parallelism=actors, cpu="250m"),
    }
    resources = "".join(f"  - {name}\n" for name in texts)
    texts["kustomization.yaml"] = templates.KUSTOMIZATION.format(
        namespace=namespace, resources=resources, image=_image(image)
    )
    return texts


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


def _quoted(text: str) -> str:
    """Quotes a text as one line of YAML."""
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def _service(role: str, memory: int, limit: int, cpu: str = "100m", disk: int = 1024) -> str:
    """Returns a server node: a headless Service, and a StatefulSet of one pod with a volume."""
    names = ["replay", "reverb"] if role == "replay" else [role]
    kinds = {name: "reverb" if name == "reverb" else "courier" for name in names}
    ports = ", ".join(f"{{name: {kinds[name]}, port: {PORTS[name]}}}" for name in names)
    pod = _pod([role], memory, limit, cpu, mounted=True)
    return templates.SERVICE.format(
        role=role, about=_ABOUT[role], ports=ports
    ) + templates.STATEFUL_SET.format(role=role, pod=textwrap.indent(pod, " " * 6), disk=disk)


def _job(
    role: str,
    failures: int,
    words: list[str],
    parallelism: int = 0,
    cpu: str = "100m",
    claim: bool = False,
) -> str:
    """Returns the Job of a node that ends with the run."""
    pod = _pod(words, NODE_MEGABYTES, NODE_MEGABYTES, cpu, mounted=claim, restart="OnFailure")
    if claim:
        pod += "  - {name: run, persistentVolumeClaim: {claimName: eve-results}}\n"
    return templates.JOB.format(
        role=role,
        parallelism=f"  parallelism: {parallelism}\n" if parallelism else "",
        failures=failures,
        pod=textwrap.indent(pod, " " * 6),
    )


def _pod(
    words: list[str], memory: int, limit: int, cpu: str, mounted: bool, restart: str = ""
) -> str:
    alive, health = _FILE_ALIVE, ""
    if words[0] == "coordinator":
        alive = f"httpGet: {{path: /alive, port: {METRICS_PORT}}}"
        health = templates.READINESS.format(port=METRICS_PORT)
    return templates.POD.format(
        restart=f"restartPolicy: {restart}\n" if restart else "",
        words=", ".join(words),
        cpu=cpu,
        memory=memory,
        limit=limit,
        alive=alive,
        health=health,
        mount="      - {name: run, mountPath: /data}\n" if mounted else "",
    )
