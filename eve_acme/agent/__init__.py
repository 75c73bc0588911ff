"""The Acme agent. Importing it first repairs JAX for Acme 0.4.0, in every process."""

from eve_acme.agent import compat

compat.repair()
