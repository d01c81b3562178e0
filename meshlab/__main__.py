"""``python -m meshlab``, and the command ``meshlab``."""

import sys


def main() -> int:
    """Run the command line. An interrupt is one line even if it comes while modules are imported."""
    try:
        from meshlab.cli._main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("meshlab: interrupted\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
