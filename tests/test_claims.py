"""What the pages say about our runs is what the committed tables say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: A number with its interval, of either sign.
ESTIMATE = re.compile(r"[+−-]?[\d.]+ \[[−-]?[\d.]+, [−-]?[\d.]+\]")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").replace("-", "−")


def rows(text: str) -> list[list[str]]:
    """Cells of every row of the Markdown tables of a text."""
    found = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in found]


def numbers(cell: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in re.findall(r"[−+]?\d+\.?\d*", cell)]


def estimates(page: str) -> list[str]:
    return [found.replace("+", "") for found in ESTIMATE.findall(page)]


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        ("docs/noise.md", ["benchmarks/noise-tiny/table.md"]),
        ("docs/results.md", ["benchmarks/RESULTS.md"]),
        ("docs/miniature.md", ["benchmarks/table3-tiny/table.md"]),
    ],
)
def test_every_estimate_of_a_page_stands_in_its_table(page, sources):
    known = {found for source in sources for found in estimates(read(source))}
    assert [found for found in estimates(read(page)) if found not in known] == []


def test_the_summaries_of_the_miniature_and_of_noise_follow_from_their_tables():
    """Of either sign: `-28.5 points [-55.0, -2.1]`, `19.9 points lower [12.4, 27.5]`."""
    text = read("benchmarks/RESULTS.md")
    quoted = re.compile(r"[\d.]+(?: points)?(?: lower)? \[[−\d.]+, [−\d.]+\]")
    for title, folder in (
        ("Table 3 of the paper in", "table3-tiny"),
        ("Reward noise", "noise-tiny"),
    ):
        part = text[text.index(f"## {title}") :].split("\n## ")[0]
        known, found = (
            {tuple(sorted(map(abs, numbers(one)))) for one in quoted.findall(among)}
            for among in (read(f"benchmarks/{folder}/table.md"), part)
        )
        assert len(found) > 1 and found <= known


def test_what_is_said_of_the_best_scores_of_the_miniature():
    found = {
        row[0].partition(" (")[0]: numbers(row[3])[0]
        for row in rows(read("benchmarks/table3-tiny/table.md"))
        if "of 3 runs" in row[0]
    }
    assert len(found) == 17 and max(found, key=lambda name: found[name]) == "none"
    clips = [found[f"clip−epsilon{e}"] for e in (0.1, 0.2, 0.3, 0.329, 0.4, 0.422)]
    assert max(abs(score - found["atr"]) for score in clips) == pytest.approx(2.1)


def test_what_is_said_of_control_follows_from_its_table():
    page = read("docs/control.md")
    table = [row for row in rows(page) if len(row) == 10 and "[" in row[2]]
    assert len(table) == 18
    final = [row for row in table if row[4] not in ("−",)]
    differ = [p for row in final for p in (row[4], row[7]) if p[0] == "<" or numbers(p)[0] <= 0.05]
    assert len(final) == 15 and "Of the 30 comparisons" in page
    assert (len(differ), sum(row[4] == "< 0.001" for row in final)) == (9, 1)
    for name, share in (("CartPole", 0.57), ("InvertedDoublePendulum", 0.35)):
        here = {row[1]: row for row in table if row[0] == name}
        clip = numbers(here["clip 0.2"][2])[0]
        # Beside the difference that was found, how far the others may reach.
        reach = max(
            abs(end)
            for name, row in here.items()
            if name not in ("clip 0.2", "none")
            for end in numbers(row[3])[1:]
        )
        assert reach / clip == pytest.approx(share, abs=0.006)
