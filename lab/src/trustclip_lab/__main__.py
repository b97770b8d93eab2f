"""``python -m trustclip_lab COMMAND``: with the laboratory on the path, not installed."""

from trustclip.cli.main import command
from trustclip.cli.registry import distributions
from trustclip_lab.cli import COMMANDS

distributions()["trustclip-lab"] = COMMANDS
command()
