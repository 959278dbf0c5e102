"""`python -m tcpvit` is `tcpvit`."""

import sys

from tcpvit.cli import main

if __name__ == "__main__":
    sys.exit(main())
