"""The Launchpad program, and how one of its nodes is started by itself.

`lp.launch` starts all nodes of a program at once, and stops all of them when one dies. To restart
a node, or to run it in a container of its own, each process builds the whole program from the same
`Run`, binds every node's address to a known one, and runs the executable of one node.
"""

import os
import pathlib
import sys
from typing import Any

from eve_acme.distributed.node import Run
from eve_acme.experiments import devices

ROLES = ("counter", "replay", "learner", "evaluator", "actor", "coordinator")
"""In the order of their starting."""


def make_program(run: Run) -> Any:
    """The program. Its node functions live in this package, which repairs JAX for Acme.

    Nobody calls an actor or the coordinator, so they have no server: who reaches a Courier server
    can run code there, and what does not listen cannot be reached.
    """
    import launchpad as lp

    import eve_acme.agent  # noqa: F401  Before anything of Acme is imported.
    from eve_acme.distributed.actor import Actor, Evaluator
    from eve_acme.distributed.coordinator import Coordinator
    from eve_acme.distributed.counter import Counter
    from eve_acme.distributed.learner import Learner
    from eve_acme.distributed.replay import Replay

    program = lp.Program("eve")
    pool = dict(thread_pool_size=run.actors + 8)

    def add(label: str, node: Any) -> Any:
        with program.group(label):
            return program.add_node(node)

    reverb_address = lp.Address("reverb")
    counter = add("counter", lp.CourierNode(Counter, run, courier_kwargs=pool))
    replay_node = lp.CourierNode(Replay, run, reverb_address, courier_kwargs=pool)
    replay_node.allocate_address(reverb_address)
    replay = add("replay", replay_node)
    learner = add(
        "learner",
        lp.CourierNode(Learner, run, replay, reverb_address, counter, courier_kwargs=pool),
    )
    evaluator = add("evaluator", lp.CourierNode(Evaluator, run, learner))
    with program.group("actor"):
        for index in range(run.actors):
            program.add_node(
                lp.PyClassNode(Actor, run, index, learner, replay, reverb_address, counter)
            )
    add("coordinator", lp.PyClassNode(Coordinator, run, counter, replay, learner, evaluator))
    return program


ADDRESSES = {
    "counter": "counter/0/0",
    "replay": "replay/0/0",
    "reverb": "replay/0/1",
    "learner": "learner/0/0",
    "evaluator": "evaluator/0/0",
}
"""All that listens, and its name in `bind`: known without building the program, so that whoever
only starts processes need not import what they need."""


def bind(program: Any, addresses: dict[str, str]) -> None:
    """Binds each node's addresses, by name.

    The one place that needs something private of Launchpad: the context of a node is otherwise
    made in `lp.launch` alone. A test checks that it is there.
    """
    from launchpad import address as lp_address
    from launchpad import context

    class Static(lp_address.AbstractAddressBuilder):
        def __init__(self, address: str):
            self._address = address

        def build(self) -> str:
            return self._address

    for label, nodes in program.groups.items():
        for i, node in enumerate(nodes):
            kind = context.LaunchType.LOCAL_MULTI_THREADING
            node._initialize_context(kind, launch_config=None)
            for handle in node.input_handles:
                handle.connect(node, label)
            for k, address in enumerate(node.addresses):
                address.bind(Static(addresses[f"{label}/{i}/{k}"]))


def run_node(run: Run, addresses: dict[str, str], role: str, index: int) -> None:
    """Runs one node in this process, until it ends; all but the learner stay on the CPU."""
    if role != "learner":
        devices.stay_on_cpu()
    elif run.learner_device is not None:
        devices.use(run.learner_device)
    program = make_program(run)
    bind(program, addresses)
    node = program.groups[role][index]
    type(node).to_executables([node], role, node.launch_context)[0]()


def leave(code: int) -> None:
    """Ends this process at once: threads of TensorFlow and gRPC that wait are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def redirect_output(path: pathlib.Path) -> None:
    """Everything that this process prints, C++ included, goes to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
