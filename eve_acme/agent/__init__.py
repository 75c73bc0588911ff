"""The Acme agent. Importing it repairs JAX for Acme 0.4.0 first, in whichever process it is."""

from eve_acme.agent import compat

compat.repair()
