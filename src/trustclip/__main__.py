"""``python -m trustclip``: the command line."""

import sys

from trustclip.cli import main

if __name__ == "__main__":
    sys.exit(main())
