"""The report of the runs with SmolLM2: its numbers made anew, and what is left out."""

from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

parquet = pytest.importorskip("pyarrow.parquet")
import pyarrow as pa  # noqa: E402
import smollm2_blocks as judged  # noqa: E402
import smollm2_report as report  # noqa: E402
import smollm2_theorem as theorem  # noqa: E402

SEEDS, RATES = range(8), (3e-5, 9e-5)
#: Share of right answers that an arm's policy has in the last generation, by rate.
LEVELS = {"atr": (0.8, 0.8), "clip": (0.55, 0.8), "mirror": (0.8, 0.8), "none": (0.55, 0.55)}


def made(folder: Path, *, lost: tuple[Any, ...] = ()) -> Path:
    """Tables of runs whose scores rise in a line; of the run ``lost`` all after generation 5."""
    rng = np.random.default_rng(0)
    generations: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for arm, levels in LEVELS.items():
        for rate, level in zip(RATES, levels, strict=True):
            for seed in SEEDS:
                run = {"arm": arm, "rate": rate, "seed": seed}
                for number in range(1, 6 if lost == (arm, rate, seed) else 17):
                    share = 0.3 + (level - 0.3) * number / 16 + 0.02 * np.sin(seed + number)
                    generations.append(
                        {
                            **run,
                            "generation": number,
                            "right": int(rng.binomial(64, share)),
                            "entropy": 1.0 - 0.05 * number,
                            "gated": None if arm == "none" else 0.02,
                            "k3": 0.001 / level,
                        }
                    )
                for update, score in ((0, 0.3), (256, level)):
                    right = rng.binomial(4, score, size=128).tolist()
                    answers += [
                        {**run, "update": update, "problem": str(n), "samples": 4, "right": r}
                        for n, r in enumerate(right)
                    ]
    folder.mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(generations), folder / "generations.parquet")
    parquet.write_table(pa.Table.from_pylist(answers), folder / "answers.parquet")
    return folder


def areas(folder: Path) -> dict[tuple[str, float, int], float]:
    found: dict[tuple[str, float, int], float] = {}
    for row in parquet.read_table(folder / "generations.parquet").to_pylist():
        key = row["arm"], row["rate"], row["seed"]
        found[key] = found.get(key, 0.0) + row["right"] / 832 * (row["generation"] >= 4)
    return found


def test_contrasts_are_paired_t_tests_of_blocks_with_holms_correction(tmp_path: Path) -> None:
    folder = made(tmp_path)
    area = areas(folder)
    p_values = {}
    for arm in ("clip", "mirror", "none"):
        blocks = [
            np.mean([area["atr", rate, seed] - area[arm, rate, seed] for rate in RATES])
            for seed in SEEDS
        ]
        test: Any = stats.ttest_1samp(blocks, 0)
        p_values[arm] = test.pvalue
        found = report.tested(report.read(folder))[arm].difference
        low, high = test.confidence_interval(0.95)
        assert (found.value, found.low, found.high) == pytest.approx((np.mean(blocks), low, high))
    ordered = sorted(p_values, key=lambda arm: p_values[arm])
    corrected, before = {}, 0.0
    for times, arm in zip((3, 2, 1), ordered, strict=True):
        corrected[arm] = before = max(before, min(times * p_values[arm], 1.0))
    for arm, one in report.tested(report.read(folder)).items():
        assert one.p_holm == pytest.approx(corrected[arm])


def test_every_verdict_has_one_ruler() -> None:
    """A corrected interval leaves out 0 exactly where Holm's p is below 5 %."""
    told = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        differences = list(rng.normal([[0.02], [0.01], [0.0]], 0.02, size=(3, 6)))
        for d, one in zip(differences, judged.family(differences).values(), strict=True):
            outside = not one.corrected.low <= 0 <= one.corrected.high
            assert outside == (one.p_holm < 0.05) and not (outside and one.word == "open")
            told.add((outside, one.difference.low <= 0 <= one.difference.high))
            signs = np.array([*product((-1, 1), repeat=6)]) @ d
            assert one.flips == np.mean(np.abs(signs) >= abs(d.sum()) - 1e-12)
            assert one.below == sum(d < 0) and one.flips_holm >= one.flips
    assert (False, False) in told, "an interval that leaves out 0, and no verdict"


def test_an_arm_has_learned_where_its_end_is_above_its_start(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    assert blocks.start == pytest.approx(0.3, abs=0.1)
    tests: Any = stats.ttest_1samp(blocks.end - blocks.start, 0, axis=-1)
    p = tests.pvalue.ravel()
    order = np.argsort(p)
    corrected = np.maximum.accumulate(p[order] * np.arange(8, 0, -1))
    assert judged.learned(blocks).ravel()[order].tolist() == (corrected <= 0.05).tolist()
    flat = judged.replace(blocks, end=blocks.start + 0.001 * np.sin(np.arange(8)))
    assert not judged.learned(flat).any()
    assert "at 9.0e-5 no arm**" in report.learners(flat)


def test_collapses_are_compared_with_those_of_shuffled_scores(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    rng, scores = np.random.default_rng(0), blocks.right[0, 0, 0]
    shuffled = rng.permuted(np.tile(scores, (20_000, 1)), axis=1)
    gap = np.sort(scores)[-3:].mean() - shuffled[:, -3:].mean(axis=1)
    assert blocks.collapsed_by_chance[0, 0, 0] == pytest.approx((gap >= 0.1).mean(), abs=0.02)


def test_the_theorem_is_compared_with_its_predictions_in_any_order() -> None:
    predicted, came = np.array([1, 1, 1, -1, 2, 0.0]), np.array([1, 1, -1, -1, 1, 1.0])
    orders = [np.array(o) * came[:5] > 0 for o in permutations(predicted[:5])]
    found = theorem.Signs.of(predicted, came)
    assert (found.right, found.total) == (4, 5)
    assert found.expected == pytest.approx(np.mean(orders) * 5)
    assert found.p_base == pytest.approx(np.mean([order.sum() >= 4 for order in orders]))
    x, y = np.random.default_rng(0).normal(size=(2, 24))
    seeds = np.repeat(np.arange(8), 3)
    draws = np.random.default_rng(0).integers(8, size=(10_000, 8))
    rows = [np.concatenate([np.flatnonzero(seeds == seed) for seed in draw]) for draw in draws]
    tail = stats.norm.cdf(np.sqrt(8 / 7) * stats.t.ppf(0.025, 7))
    low, high = np.quantile([np.corrcoef(x[i], y[i])[0, 1] for i in rows], [tail, 1 - tail])
    written = f"{np.corrcoef(x, y)[0, 1]:+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    assert theorem.correlated(x, y, seeds.tolist()) == written


def test_what_is_said_follows_from_tests_end_and_rates(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    said = report.said(blocks)
    assert said["none"] == "confirmed"
    assert said["clip"].startswith("confirmed; tuning"), "it is behind at one rate alone"
    assert said["mirror"].startswith(("refuted (equivalent)", "open"))
    higher = [
        np.diff([areas(tmp_path)["atr", r, s] - areas(tmp_path)["clip", r, s] for r in RATES])[0]
        for s in SEEDS
    ]
    assert report.interactions(blocks)["clip"].difference.value == pytest.approx(np.mean(higher))


def test_generations_that_a_run_never_reached_count_as_wrong(tmp_path: Path) -> None:
    lost = ("none", RATES[1], 3)
    blocks = report.read(made(tmp_path, lost=lost))
    place = report.ARMS.index("none"), 1, 3
    assert (blocks.right[place][5:] == 0).all() and blocks.collapsed[place]
    assert blocks.area[place] == pytest.approx(areas(tmp_path)[lost])


def test_a_block_without_all_of_its_runs_is_left_out(tmp_path: Path) -> None:
    folder = made(tmp_path)
    answers = parquet.read_table(folder / "answers.parquet").to_pylist()
    kept = [r for r in answers if (r["arm"], r["rate"], r["seed"]) != ("clip", RATES[0], 7)]
    parquet.write_table(pa.Table.from_pylist(kept), folder / "answers.parquet")
    assert report.read(folder).seeds == list(range(7))
    only = [row for row in answers if row["arm"] == "atr"]
    parquet.write_table(pa.Table.from_pylist(only), folder / "answers.parquet")
    with pytest.raises(ValueError, match="no seed has a finished run of every arm"):
        report.read(folder)


def test_entropy_is_read_off_where_half_of_the_answers_are_right(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    right, entropy = blocks.right[0, 0, 0], blocks.entropy[0, 0, 0]
    found = blocks.entropy_at_equal_score[0, 0, 0]
    i = next(n for n in range(15) if right[n] < 0.5 <= right[n + 1])
    assert min(entropy[i], entropy[i + 1]) <= found <= max(entropy[i], entropy[i + 1])
    assert np.interp(0.5, right[i : i + 2], entropy[i : i + 2]) == pytest.approx(found)


def test_tables_are_written_into_their_places(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    page = "A\n<!-- blocks -->old<!-- /blocks -->\nB\n"
    assert "8 blocks, 64 runs." in report.filled(page, report.tables(blocks))
    assert report.tables(blocks)["contrasts"].count("`atr` −") == 6
    looks = report.tables(blocks)["looks"].splitlines()[2:]
    assert [row.split()[1] for row in looks] == ["3", "4", "5", "6"]
    first = report.tested(report.read(cut_to(tmp_path, 3)))["clip"]
    assert f"| 3 | {report.signed(first.difference.value)}, p {first.p_holm:.3f} |" in looks[0]


def test_the_page_is_made_from_the_committed_tables() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    assert text == report.filled(text, report.page_parts(report.FOLDER)), "smollm2_report.py"


def test_figure_and_readme_are_of_the_committed_tables(tmp_path: Path) -> None:
    from trustclip.report.draw.figures import save

    blocks = report.read(report.FOLDER)
    assert len(blocks.seeds) >= report.ENOUGH
    _, svg = save(report.curves(blocks), tmp_path)
    assert svg.read_bytes() == (report.FOLDER / svg.name).read_bytes(), "smollm2_report.py"
    for page, quoted in report.quotes(blocks, report.FOLDER).items():
        text = page.read_text(encoding="utf-8")
        assert "<!-- smollm2 -->" in text and text == report.quoted(page, quoted), page
    text = report.README.read_text(encoding="utf-8")
    assert "<!-- smollm2 -->" in text.partition("## Results\n")[2].partition("\n## ")[0]


def test_what_is_quoted_is_what_the_committed_tables_say() -> None:
    """From the rows alone, without a function of ours."""
    rows = parquet.read_table(report.FOLDER / "answers.parquet").to_pylist()
    share: dict[tuple[Any, ...], float] = {}
    for row in rows:
        key = row["arm"], row["rate"], row["seed"], row["update"] > 0
        share[key] = share.get(key, 0.0) + row["right"] / 512
    rates = sorted({row["rate"] for row in rows})

    def cell(arm: str, rate: float, end: bool = True) -> Any:
        return np.array([share[arm, rate, seed, end] for seed in range(6)])

    def written(d: Any) -> str:
        low, high = stats.ttest_1samp(d, 0).confidence_interval()
        return f"{100 * d.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−")

    ends = {arm: np.mean([cell(arm, rate) for rate in rates], axis=0) for arm in report.ARMS}
    gap = ends["atr"] - ends["clip"]
    told = report.told(report.read(report.FOLDER))
    assert max(ends, key=lambda arm: ends[arm].mean()) == "clip" and (gap < 0).all()
    assert "the ordinary clip did best:**" in told["clip"]
    assert f"{written(gap)} points at the end, below 0 in 6 of 6 blocks" in told["clip"]
    for rate in rates:
        d = cell("none", rate) - cell("none", rate, end=False)
        assert written(d) in told["none"] and d.mean() < 0
    assert "nothing was learned" in told["none"] and "sign flips 2/64" in told["none"]


def test_no_page_has_a_gain_over_none_without_the_loss_to_clip() -> None:
    for page in (report.README, *(report.ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert "`atr` − `none`" not in text or "`atr` − `clip`" in text, page


def cut_to(folder: Path, seeds: int, without: tuple[Any, ...] = ()) -> Path:
    """The tables of fewer seeds, and without a run."""
    for name in ("generations", "answers"):
        path = folder / f"{name}.parquet"
        rows = [
            row
            for row in parquet.read_table(path).to_pylist()
            if row["seed"] < seeds and (row["arm"], row["rate"], row["seed"]) != without
        ]
        parquet.write_table(pa.Table.from_pylist(rows), path)
    return folder


def test_too_few_blocks_conclude_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path)
    enough = report.page_parts(folder)
    assert enough["blocks"].startswith("**8 of the 16 planned blocks are finished** (64 runs).")
    assert "nothing is concluded" not in enough["blocks"]
    assert "confirmed" in enough["predictions"] and "not a result" not in enough["predictions"]

    few = report.page_parts(cut_to(folder, 4, without=("none", RATES[0], 3)))
    assert (
        "**3 of the 16 planned blocks are finished** (31 runs). Some runs of 1 more"
        in few["blocks"]
    )
    assert "**nothing is concluded yet**: 3 more blocks are missing" in few["blocks"]
    assert "not a result" in few["predictions"] and "| `clip` |" in few["scores"]

    one = report.page_parts(cut_to(folder, 1))
    assert one["contrasts"] == one["predictions"] == "Nothing yet: an interval needs two blocks."
    none = report.page_parts(tmp_path / "none")
    assert "**0 of the 16 planned blocks are finished** (0 runs)." in none["blocks"]
    page = report.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in page for name in none) and enough.keys() == none.keys()


def test_a_prediction_holds_if_all_of_the_interval_does() -> None:
    def held(low: float, high: float) -> str:
        return judged.held(judged.Interval((low + high) / 2, low, high), 0.0, 0.02)

    assert held(0.001, 0.019) == "holds"
    assert held(-0.03, -0.001) == held(0.021, 0.04) == "does not hold"
    assert held(-0.001, 0.019) == held(0.001, 0.021) == held(-1, 1) == "open"


def test_curves_have_the_mean_and_the_interval_of_every_arm_and_rate(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    panels = report.curves(blocks).panels
    assert [p.title for p in panels[::3]] == [
        "atr and clip, rate 3.0e-5",
        "atr and clip, rate 9.0e-5",
    ]
    band = panels[4].marks[0]
    assert band.name == "mirror" and band.style == "band"
    right = 100 * blocks.right[report.ARMS.index("mirror"), 1, :, 6]
    test: Any = stats.ttest_1samp(right, 0)
    low, high = test.confidence_interval(0.95)
    assert (band.low[6], band.y[6], band.high[6]) == pytest.approx((low, right.mean(), high))


def test_the_power_is_that_of_the_noncentral_t_test(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    row = next(r for r in report.power(blocks).splitlines() if "`clip`" in r)
    area = areas(tmp_path)
    std = np.std(
        [
            np.mean([area["atr", rate, seed] - area["clip", rate, seed] for rate in RATES])
            for seed in SEEDS
        ],
        ddof=1,
    )
    low, high = (std * np.sqrt(7 / stats.chi2.ppf(q, 7)) for q in (0.975, 0.025))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells[0] == f"{100 * std:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    for size, cell in zip(report.SIZES, cells[1:], strict=True):
        shift, quantile = float(cell) / 100 / std * size**0.5, stats.t.ppf(1 - 0.05 / 6, size - 1)
        assert stats.nct.sf(quantile, size - 1, shift) == pytest.approx(0.8, abs=0.03), size


def test_what_remains_is_exactly_what_the_tables_lack(tmp_path: Path) -> None:
    import smollm2
    import yaml

    from trustclip.train.suite.plan import plan

    settings = yaml.safe_load(smollm2.SUITE.read_text(encoding="utf-8"))
    (short := tmp_path / "short.yaml").write_text(
        yaml.safe_dump(settings | {"seeds": [0, 1, 2], "recipe": "smollm2"})
    )
    whole = {job.name: job for job in plan(short).runs}

    def key(name: str) -> tuple[str, float, int]:
        job = whole[name]
        return job.label, job.settings["rl"]["learning_rate"], job.seed

    low, high = sorted({key(name)[1] for name in whole})
    left = {("none", low, 1), ("mirror", high, 1), ("none", high, 1)}
    there = [
        {"arm": arm, "rate": rate, "seed": seed, "right": 1}
        for arm, rate, seed in map(key, whole)
        if seed < 2 and (arm, rate, seed) not in left
    ]
    parquet.write_table(pa.Table.from_pylist(there), tmp_path / "answers.parquet")
    found = []
    for suite in smollm2.remaining(short, tmp_path):
        file = tmp_path / f"{suite['name']}.yaml"
        file.write_text(yaml.safe_dump(suite))
        found.append([job.name for job in plan(file).runs])
    assert [len(names) for names in found] == [1, 2, 8]  # the block that was begun goes first
    assert {key(name) for name in found[0] + found[1]} == left
    assert {key(name) for name in found[2]} == {k for k in map(key, whole) if k[2] == 2}
    everything = list(smollm2.remaining(smollm2.SUITE, tmp_path / "none"))
    assert len(everything) == 1 and everything[0]["seeds"] == list(range(16))


@pytest.mark.parametrize("given", [[], ["runs", "--remaining", "folder"]])
def test_tables_or_suites_are_written_and_not_both(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import smollm2

    monkeypatch.setattr("sys.argv", ["smollm2.py", *given])
    with pytest.raises(SystemExit, match="2"):
        smollm2.main()
    assert "give folders of runs, or --remaining FOLDER" in capsys.readouterr().err


def test_controls_are_the_same_only_where_all_hashes_are(tmp_path: Path) -> None:
    rows = [
        {
            "control": "twin",
            "arm": arm,
            "rate": rate,
            "seed": 0,
            "answers": f"{rate}",
            "weights": "",
        }
        for arm in ("atr", "twin")
        for rate in RATES
    ]

    def told(given: list[dict[str, Any]]) -> str:
        parquet.write_table(pa.Table.from_pylist(given), tmp_path / "controls.parquet")
        return report.controls(tmp_path).splitlines()[0]

    assert told(rows).endswith("every answer and every weight is the same.")
    assert told(rows[:3]).endswith("not run yet.")
    assert "**differs**" in told([*rows[:3], rows[3] | {"weights": "others"}])
    assert report.controls(tmp_path / "none").count("not run yet") == 2


def test_branches_are_compared_by_state(tmp_path: Path) -> None:
    assert report.branches(tmp_path).startswith("0 of the 24 planned states")
    rng, rows, right, pairs = np.random.default_rng(0), [], 0, []
    for seed in range(3):
        for generation in (4, 10, 16):
            gap, noise = rng.normal(size=2)
            predicted = gap + 0.5 * noise
            right += gap * predicted > 0
            pairs.append((predicted, gap))
            for arm, entropy in {"state": 0.3, **dict.fromkeys(report.ARMS, 0.29)}.items():
                more = 0.001 * gap if arm == "atr" else 0.0
                rows.append(
                    {"seed": seed, "generation": generation, "arm": arm, "entropy": entropy + more,
                     "kl_old_new": 0.002 * (arm != "state"),
                     "kl_new_old": 0.003 * (arm != "state"), "solutions": -1.0,
                     "stated": predicted, "corrected": 0.0, "alike": 16 - seed // 2,
                     "only_atr": seed, "only_mirror": generation, "tokens": generation,
                     "stated_right": generation - 1}
                )  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "branches.parquet")
    text = report.branches(tmp_path)
    assert text.startswith(
        "9 of the 24 planned states, of 3 seeds. Of the runs made anew, 2 of 3 score as the "
        "committed ones in all 16 generations, seed 2 in 15."
    )
    assert "| `mirror` | −10.00 [−10.00, −10.00] | +2.00 [2.00, 2.00] | +3.00" in text
    each = np.array(pairs)[:, 1].reshape(3, 3).mean(axis=1)
    assert f"| `atr` − `mirror` | {each.mean():+.2f} [".replace("-", "−") in text
    size = np.abs(np.array(pairs)[:, 1]).mean()
    assert "treat 11.0 tokens of a generation differently (4 to 18)" in text
    assert f"then differ by {size:.1f} mnat" in text
    p = min(1.0, 2 * sum(stats.binom.pmf(k, 9, 0.5) for k in range(right, 10)))
    r = np.corrcoef(np.array(pairs).T)[0, 1]
    assert f"is right in {right} of 9 states. A coin would be right in 4.5 (p {p:.2g})" in text
    assert f"The correlation is {r:+.2f} [" in text
    assert "resampled. At the tokens' own places 81 of 90 tokens have its sign." in text
    assert text.endswith("with π(a), as derived: too few states in which the two gates differ.")
