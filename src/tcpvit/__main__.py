"""`python -m tcpvit` is `tcpvit`."""

import atexit
import os
import sys

from tcpvit.cli import main

if __name__ == "__main__":
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # A process of torchrun does everything that it has to do at its end, but does not take the interpreter down:
        # on a busy machine threads of torch's own were seen to abort that, after the run was complete.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
