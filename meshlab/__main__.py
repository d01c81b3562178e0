"""``python -m meshlab``."""

import sys

from meshlab.cli import main

sys.exit(main())
