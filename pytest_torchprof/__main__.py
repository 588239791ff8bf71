"""`python -m pytest_torchprof` is the `torchprof` command."""

import sys

from pytest_torchprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
