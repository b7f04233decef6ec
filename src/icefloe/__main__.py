"""`python -m icefloe` is the command line."""

import sys

from icefloe.cli import main

sys.exit(main())
