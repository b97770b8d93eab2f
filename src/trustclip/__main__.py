"""``python -m trustclip``: the command line."""

from trustclip.cli.main import command

if __name__ == "__main__":
    command()
