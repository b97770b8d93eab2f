"""The page of a run: one HTML file, no script, nothing fetched."""

from pathlib import Path

from jinja2 import Environment, PackageLoader

from trustclip.recipes.records import read_jsonl
from trustclip.report.figures import training_curves


def write_page(folder: Path, title: str) -> str:
    """Write ``report.html`` of a run directory from what it holds.

    Args:
      folder: the run directory.
      title: of the page.

    Returns:
      Name of the file.
    """
    import json

    environment = Environment(loader=PackageLoader("trustclip.report"), autoescape=True)
    rows = read_jsonl(folder / "metrics.jsonl")
    samples = [
        row for row in read_jsonl(folder / "samples.jsonl") if row["stage"] in ("before", "after")
    ]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    html = environment.get_template("run.html.j2").render(
        title=title,
        summary=summary,
        figure=training_curves([row for row in rows if row["stage"] == "rl"]),
        examples=_examples(samples),
    )
    (folder / "report.html").write_text(html, encoding="utf-8")
    return "report.html"


def _examples(samples: list[dict], per_stage: int = 6) -> list[dict]:
    """First sample of a few problems, the same ones before and after."""
    chosen = [row for row in samples if row["k"] == 0]
    ids = [row["id"] for row in chosen if row["stage"] == "before"][:per_stage]
    pairs = {(row["stage"], row["id"]): row for row in chosen}
    return [
        {"problem": key.partition(":")[2] or key, "before": pairs[("before", key)],
         "after": pairs.get(("after", key))}
        for key in ids
    ]  # fmt: skip
