"""The Launchpad program, and a way to run a single node of it.

`lp.launch` starts all nodes of a program at once and stops all of them when one dies. Here each
process builds the whole program from the same `Run`, binds every node's address to a known one, and
runs the executable of one node. So a node can be restarted, or run in its own container.
"""

import os
import pathlib
import sys
from typing import Any

from eve_acme.distributed.node import Run
from eve_acme.experiments import devices

ROLES = ("counter", "replay", "learner", "evaluator", "actor", "coordinator")
"""In the order in which they start."""


def make_program(run: Run) -> Any:
    """Makes the program. This package defines its node functions and repairs JAX for Acme.

    Actors and the coordinator have no Courier server, since no node calls them. A client of a
    Courier server can run code there, so fewer servers are safer.
    """
    import launchpad as lp

    import eve_acme.agent  # noqa: F401  Before any import of Acme.
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
"""The name in `bind` of each server's address. A constant, so that the launcher need not build the
program and import its packages."""


def bind(program: Any, addresses: dict[str, str]) -> None:
    """Binds the addresses of all nodes.

    This is the only use of a private method of Launchpad: otherwise only `lp.launch` makes a node's
    context. A test checks that the method exists.

    Args:
      program: the result of `make_program`.
      addresses: `host:port` by the names in `ADDRESSES`' values.
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
    """Runs one node in this process until it ends. All nodes but the learner use the CPU.

    Args:
      run: the run.
      addresses: see `bind`.
      role: one of `ROLES`.
      index: the node's index among nodes of its role.
    """
    if role != "learner":
        devices.stay_on_cpu()
    elif run.learner_device is not None:
        devices.use(run.learner_device)
    program = make_program(run)
    bind(program, addresses)
    node = program.groups[role][index]
    type(node).to_executables([node], role, node.launch_context)[0]()


def leave(code: int) -> None:
    """Exits this process at once, without joining blocked threads of TensorFlow and gRPC."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def redirect_output(path: pathlib.Path) -> None:
    """Appends all output of this process, including that of C++, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
