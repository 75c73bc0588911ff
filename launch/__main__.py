"""`python -m eve_acme.launch`."""

import sys

from eve_acme.launch.main import main

sys.exit(main())
