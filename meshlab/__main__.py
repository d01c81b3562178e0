"""``python -m meshlab``."""

import sys

from meshlab.cli._main import main

sys.exit(main())
