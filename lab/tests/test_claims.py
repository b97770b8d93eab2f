"""What the pages say about our runs is what the committed tables say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A number with its interval, of either sign.
ESTIMATE = re.compile(r"[+−-]?[\d.]+ \[[−-]?[\d.]+, [−-]?[\d.]+\]")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").replace("-", "−")


def numbers(cell: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in re.findall(r"[−+]?\d+\.?\d*", cell)]


def estimates(page: str) -> list[str]:
    return [found.replace("+", "") for found in ESTIMATE.findall(page)]


def assert_alike(made: str, stored: str, told: str) -> None:
    """The same words and, to the last printed digit, numbers: sums depend on the processor.

    Args:
      made: by the program, now.
      stored: in the repository.
      told: what writes it anew.
    """
    number = re.compile(r"[−-]?\d+(?:\.\d+)?(?:e[−-]?\d+)?")
    assert number.sub("#", made) == number.sub("#", stored), told
    ours, theirs = ([float(n.replace("−", "-")) for n in number.findall(t)] for t in (made, stored))
    assert ours == pytest.approx(theirs, abs=0.11, rel=0.02), told


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        ("docs/lab/noise.md", ["lab/benchmarks/noise-tiny/table.md"]),
        ("docs/results.md", ["benchmarks/RESULTS.md"]),
        ("docs/lab/miniature.md", ["lab/benchmarks/table3-tiny/table.md"]),
    ],
)
def test_every_estimate_of_a_page_stands_in_its_table(page, sources):
    known = {found for source in sources for found in estimates(read(source))}
    assert [found for found in estimates(read(page)) if found not in known] == []


def test_the_summary_of_noise_follows_from_its_table():
    """Of either sign: `-1.8 [-10.5, 6.8]`, `19.9 points lower [12.4, 27.5]`."""
    text = read("benchmarks/RESULTS.md")
    quoted = re.compile(r"[\d.]+(?: points)?(?: lower)? \[[−\d.]+, [−\d.]+\]")
    part = text[text.index("## Reward noise") :].split("\n## ")[0]
    known, found = (
        {tuple(sorted(map(abs, numbers(one)))) for one in quoted.findall(among)}
        for among in (read("lab/benchmarks/noise-tiny/table.md"), part)
    )
    assert len(found) > 1 and found <= known


@pytest.fixture(scope="module")
def miniature(request):
    """The program that writes what is said of the miniature, and the runs that it reads."""
    pytest.importorskip("pyarrow")
    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)
    patch.syspath_prepend(str(ROOT / "lab/benchmarks"))
    import miniature as program

    return program, program.Miniature()


@pytest.mark.slow
def test_the_miniatures_table_and_sentences_follow_from_its_runs(miniature):
    program, mini = miniature
    written = (program.FOLDER / "table.md").read_text(encoding="utf-8")
    told, made = "python lab/benchmarks/miniature.py", program.blocks(mini)
    assert_alike(program.table(mini), written, told)
    for page in program.PAGES:
        text = page.read_text(encoding="utf-8")
        assert_alike(program.filled(text, made), text, told)
    paper = (ROOT / "docs/lab/paper.md").read_text(encoding="utf-8")
    assert program.headline(mini) in paper
    assert (program.FOLDER / "runs.parquet").stat().st_size < 2_000_000
