"""`make evidence`."""

import sys

from tests.evidence.harness import main

if __name__ == "__main__":
    sys.exit(main())
