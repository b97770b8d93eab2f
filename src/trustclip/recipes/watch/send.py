"""A stored run, sent to an experiment tracker."""

from pathlib import Path

from trustclip.recipes.watch.sinks import SinkName, start_sink
from trustclip.support.inside import refuse_links
from trustclip.support.jsonl import read_mapping, scan
from trustclip.support.secrets import redact


def send(run: Path, sink: SinkName) -> int:
    """Send the metrics of a run directory to a tracker, in the order in which they were logged.

    Its files go to a subfolder of the tracker's name. Returns the number of rows sent.

    Raises:
      ValueError: no run, nothing logged, a tracker that already has it, or whose package is
        missing or fails.
    """
    if not (run / "config.yaml").is_file():
        raise ValueError(f"{run} is not a run directory: it has no config.yaml.")
    refuse_links(run)
    metrics, folder = run / "metrics.jsonl", run / sink
    rows = (line.row for line in scan(metrics)) if metrics.is_file() else ()
    logged = [row for row in rows if row is not None]
    if not logged:
        raise ValueError(f"{run} has logged nothing yet: there is no row in {metrics.name}.")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} exists: this run has been sent to {sink}, or logged to it while it trained. "
            "Move the folder away to send it again."
        )
    tracker = start_sink(
        sink, run.resolve().name, redact(dict(read_mapping(run / "config.yaml"))), run
    )
    try:
        for row in logged:
            tracker.log(row)
    except Exception as error:
        raise ValueError(f"{sink} failed after part of the rows: {error}.") from error
    finally:
        tracker.close()
    return len(logged)
