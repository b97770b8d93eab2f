"""``trustclip explain``: the findings of a run, one a line, and what to try next."""

from pathlib import Path

from trustclip.findings.run import of_run
from trustclip.runs.reader import find, read_run
from trustclip.support.text import one_line


def explain(folder: Path) -> list[str]:
    """Describe what the gate did in a run directory or a log of another trainer.

    Returns:
      Paragraphs, each one line without control characters; the last ones suggest what to try next.

    Raises:
      ValueError: neither, a suite of several runs, or a run that has logged nothing.
    """
    folders = list(find([folder]))
    if len(folders) > 1:
        names = ", ".join(path.name for path in folders[:5])
        raise ValueError(f"{folder} contains {len(folders)} runs; choose one: {names}.")
    run = read_run(folders[0])
    if run.silence:
        raise ValueError(run.silence)
    findings = of_run(run)
    lines = [finding.line for finding in findings]
    lines += [f"Next: {finding.advice}" for finding in findings if finding.advice]
    # Names and warnings come from files: none of them may control a terminal.
    return [one_line(line) for line in lines]
