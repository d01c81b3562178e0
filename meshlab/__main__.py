"""``python -m meshlab``."""

import sys

from meshlab.cli.main import main

sys.exit(main())
