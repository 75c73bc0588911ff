"""`eve cluster slurm`: a run as one Slurm job, whose steps are `eve node`s.

The script takes the hosts' names from the allocation. Counter, evaluator and coordinator run on the
first host, learner and replay on the second if there is one, and actors on all hosts in turn,
beginning with the last.
"""

import shlex

from eve_acme.cli import manifests
from eve_acme.cli.node import PORTS

ATTEMPTS = 20
FIRST_PORT, JOBS = 20000, 2000
"""Ports are derived from the job's number, so that jobs on one host do not collide."""


def placement(actors: int, nodes: int) -> list[tuple[str, int | None, int]]:
    """Places the nodes of the program.

    Args:
      actors: number of actors.
      nodes: number of hosts.

    Returns:
      Role, index (of actors; else None) and number of the host, for each node of the program.
    """
    second = min(1, nodes - 1)
    placed: list[tuple[str, int | None, int]] = [
        ("counter", None, 0),
        ("replay", None, second),
        ("learner", None, second),
        ("evaluator", None, 0),
    ]
    placed += [("actor", i, nodes - 1 - i % nodes) for i in range(actors)]
    return [*placed, ("coordinator", None, 0)]


def script(
    words: list[str],
    out: str,
    actors: int,
    nodes: int,
    replay_megabytes: float,
    eve: str,
    name: str,
) -> str:
    """Returns the text of the sbatch script.

    Args:
      words: the arguments of 'eve launch' that describe the run, without --out.
      out: the run's folder, on a disk that all hosts share; relative to where sbatch is called.
      actors: number of actors.
      nodes: number of hosts.
      replay_megabytes: maximum size of the steps in the memory of the learner and of replay.
      eve: path of the command.
      name: name of the job.
    """
    placed = placement(actors, nodes)
    hosts = range(nodes)
    tasks = max(sum(at == host for _, _, at in placed) for host in hosts)
    memory = max(
        sum(manifests.memory_of(role, replay_megabytes)[1] for role, _, at in placed if at == host)
        for host in hosts
    )
    at = {role: host for role, _, host in placed} | {"reverb": min(1, nodes - 1)}
    addresses = ",".join(
        f"{role}=${{hosts[{at[role]}]}}:$((port + {i}))" for i, role in enumerate(PORTS)
    )
    starts = [
        f'node "${{hosts[{host}]}}" {role}'
        + ("" if index is None else f" --index {index}")
        + (' & others+=("$!")' if role != "coordinator" else " & coordinator=$!")
        for role, index, host in placed
    ]
    return _SCRIPT.format(
        name=name,
        nodes=nodes,
        tasks=tasks,
        memory=memory,
        eve=shlex.quote(eve),
        out=shlex.quote(out),
        words=shlex.join(words),
        addresses=addresses,
        first=FIRST_PORT,
        jobs=JOBS,
        attempts=ATTEMPTS,
        starts="\n".join(starts),
    )


_SCRIPT = """\
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH --cpus-per-task=1
#SBATCH --mem={memory}M
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
# Submit it again to resume a run that the time limit or a failure has ended.
set -u

eve=${{EVE:-{eve}}}
out={out}
[[ $out == /* ]] || out=${{SLURM_SUBMIT_DIR:-$PWD}}/$out
words=({words} --out "$out")

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if ((${{#hosts[@]}} != {nodes})); then
    echo "eve: nodes: got ${{#hosts[@]}} (${{hosts[*]}}), allowed is {nodes}" >&2
    exit 2
fi
port=$(({first} + SLURM_JOB_ID % {jobs} * 10))
addresses={addresses}

wait_for() {{ # The exit code of a child, also if a signal comes meanwhile.
    while kill -0 "$1" 2>/dev/null; do wait "$1"; done
    wait "$1"
}}

node() {{ # node HOST ROLE [--index I]: started again when it dies, unless its input is bad.
    local host=$1 attempt code step ended=
    shift
    trap 'ended=1; kill -TERM "$step" 2>/dev/null' TERM
    for ((attempt = 0; attempt < {attempts}; attempt++)); do
        srun --overlap --nodes=1 --ntasks=1 --nodelist="$host" \\
            "$eve" node --role "$@" --addresses "$addresses" -- "${{words[@]}}" &
        step=$!
        wait_for "$step"
        code=$?
        if [[ -n $ended ]] || ((code == 0 || code == 2)); then exit "$code"; fi
        echo "eve: $* on $host exited with code $code; restarting it" >&2
        sleep 2
    done
    exit "$code"
}}

others=()
{starts}

trap 'kill -TERM "${{others[@]}}" "$coordinator" 2>/dev/null' TERM INT
wait_for "$coordinator"
code=$?
if ((code != 0)); then kill -TERM "${{others[@]}}" 2>/dev/null; fi
# After the end of the run the others end by themselves, within a minute.
{{
    for ((second = 0; second < 60; second++)); do sleep 1; done
    kill -TERM "${{others[@]}}"
}} 2>/dev/null &
late=$!
for other in "${{others[@]}}"; do wait_for "$other"; done
kill "$late" 2>/dev/null
exit "$code"
"""
