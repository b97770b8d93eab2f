"""The laboratory's commands where the package is on the path alone, as on a bare GPU machine."""

import subprocess
import sys

FROM_THE_PATH = """
import importlib.metadata as metadata, runpy, sys
metadata.entry_points = lambda **by: metadata.EntryPoints()
sys.argv = ["trustclip", *{argv!r}]
runpy.run_module("trustclip_lab", run_name="__main__")
"""


def test_they_run_without_an_installed_distribution():
    code = FROM_THE_PATH.format(argv=["bench", "--help"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: trustclip bench [{gpu}]" in done.stdout
