"""What the fork server imports before it forks: modules alone, no thread and no device."""

import courier  # noqa: F401
import launchpad  # noqa: F401
import reverb  # noqa: F401

import eve_acme.agent.builder
import eve_acme.launch.nodes.actor
import eve_acme.launch.nodes.coordinator
import eve_acme.launch.nodes.counter
import eve_acme.launch.nodes.learner
import eve_acme.launch.nodes.replay
import eve_acme.launch.program  # noqa: F401
