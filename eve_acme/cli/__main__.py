"""`python -m eve_acme.cli`."""

import sys

from eve_acme.cli.main import main

sys.exit(main())
