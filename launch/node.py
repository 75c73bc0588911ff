"""One node of a distributed run: python launch/node.py ROLE [TASK].

Start every node with the same task and the addresses of all nodes:

    EVE_ADDRESSES=counter=h1:7001,replay=h1:7002,reverb=h1:7003,learner=h2:7004,evaluator=h2:7005
    python launch/node.py learner deep_sea:size=20     on h2, and so on: counter, replay, evaluator,
    python launch/node.py actor deep_sea:size=20       actors anywhere, and one coordinator

The same as `eve node --role ROLE -- TASK --out runs/cluster`, which docker/ runs in containers.
"""

import sys

from eve_acme.cli.main import main

if __name__ == "__main__":
    role, *task = sys.argv[1:] or ["--help"]
    words = ["--role", role, "--", *task, "--out", "runs/cluster"] if role[0] != "-" else [role]
    sys.exit(main(["node", *words]))
