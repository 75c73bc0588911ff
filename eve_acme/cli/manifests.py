"""`eve cluster manifests`: a run on Kubernetes, with requests and limits that follow its config.

Nothing here is of one vendor or one queueing system: no class, no scheduler, no queue, no
`suspend`. Kueue, Volcano and the like set theirs, by labels that a kustomization adds.
"""

import functools
import math
import re
import textwrap

from eve_acme.cli import manifest_templates as templates
from eve_acme.cli.node import PORTS
from eve_acme.errors import UsageError

METRICS_PORT = 7006
_METRICS_WORDS = ["--metrics-port", f'"{METRICS_PORT}"', "--metrics-host", "0.0.0.0"]
NODE_MEGABYTES = 700
"""Memory of a node that keeps no steps."""
PROCESS_MEGABYTES = 1024
"""Memory of a node that keeps steps, beside the steps."""
ROOM_MEGABYTES = 1024
"""Between what such a node asks for and its limit."""
JOURNAL_FACTOR = 5
"""Disk for the log of all steps, as a multiple of the memory for them."""

_ABOUT = {
    "counter": "Gives out the episodes, and counts them.",
    "evaluator": "Plays greedily now and then.",
    "replay": "All steps of the run: a Reverb server and its journal.",
    "learner": "Learns; its checkpoints are on its volume.",
}
_FILE_ALIVE = """exec: {command: [sh, -c, 'test -n "$(find /tmp/alive -mmin -2)"']}"""


def files(
    launch_words: str, actors: int, replay_megabytes: float, image: str, namespace: str
) -> dict[str, str]:
    """The manifests by the names of their files.

    Args:
      launch_words: the words of 'eve launch' that describe the run.
      actors: how many of them are started.
      replay_megabytes: the most that steps take in the learner's and in replay's memory.
      image: its name, with a tag or a digest if any.
      namespace: where all of it lives.
    Returns:
      What `kubectl apply -k` needs.
    """
    megabytes = math.ceil(replay_megabytes)
    keeper = functools.partial(
        _service, memory=PROCESS_MEGABYTES + megabytes, room=ROOM_MEGABYTES, cpu='"1"'
    )
    services = {
        "counter-and-evaluator.yaml": [_service("counter"), _service("evaluator")],
        "replay-and-learner.yaml": [
            keeper("replay", disk=max(1024, JOURNAL_FACTOR * megabytes)),
            keeper("learner"),
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


def check_namespace(name: str) -> None:
    """Raises UsageError unless Kubernetes takes it as a name."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise UsageError(
            f"--name: got {name!r}, allowed are up to 63 small letters, digits and dashes"
        )


def _image(image: str) -> str:
    """The fields of kustomize's `images` that name it; raises UsageError."""
    match = re.fullmatch(
        r"([\w.\-/]+(?::\d+/[\w.\-/]+)?)(?::([\w.-]+)|@(sha256:[0-9a-f]{64}))?", image
    )
    if match is None:
        raise UsageError(f"--image: got {image!r}, allowed is NAME, NAME:TAG or NAME@sha256:DIGEST")
    name, tag, digest = match.groups()
    last = f"digest: {digest}" if digest else f'newTag: "{tag or "latest"}"'
    return f"    newName: {name}\n    {last}"


def _quoted(text: str) -> str:
    """A text of one line as YAML."""
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def _service(
    role: str,
    memory: int = NODE_MEGABYTES,
    room: int = 0,
    cpu: str = "100m",
    disk: int = 1024,
) -> str:
    """A node that others call: a headless Service and a StatefulSet of one pod with a volume."""
    names = ["replay", "reverb"] if role == "replay" else [role]
    kinds = {name: "reverb" if name == "reverb" else "courier" for name in names}
    ports = ", ".join(f"{{name: {kinds[name]}, port: {PORTS[name]}}}" for name in names)
    pod = _pod([role], memory, room, cpu, mounted=True)
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
    """A node that ends with the run."""
    pod = _pod(words, NODE_MEGABYTES, 0, cpu, mounted=claim, restart="OnFailure")
    if claim:
        pod += "  - {name: run, persistentVolumeClaim: {claimName: eve-results}}\n"
    return templates.JOB.format(
        role=role,
        parallelism=f"  parallelism: {parallelism}\n" if parallelism else "",
        failures=failures,
        pod=textwrap.indent(pod, " " * 6),
    )


def _pod(
    words: list[str], memory: int, room: int, cpu: str, mounted: bool, restart: str = ""
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
        limit=memory + room,
        alive=alive,
        health=health,
        mount="      - {name: run, mountPath: /data}\n" if mounted else "",
    )
