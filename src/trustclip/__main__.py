"""``python -m trustclip``: the command line."""

import sys

from trustclip.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
