"""The microscope in a browser: files of other programs, shares and thresholds as Python's."""

import gzip
import html
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import token_files
from browser import opened, wait
from patience import until

import trustclip as tc
from trustclip.cli.main import main
from trustclip.constraints.shadow import label
from trustclip.findings.suggest import suggest
from trustclip.logs.tokens import TokenRow, write_tokens
from trustclip.logs.watched import watch
from trustclip.report import microscope
from trustclip.report.microscope import token_page

READY = "document.documentElement.dataset.tokens === 'ready'"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page with its sample."""
    path = tmp_path_factory.mktemp("microscope") / "microscope.html"
    path.write_text(token_page((), "Microscope"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return token_files.write(tmp_path_factory.mktemp("tokens") / "tokens.jsonl")


def give(tab, *paths: Path) -> str:
    """Open files as a reader does; what the page says of them, or the error that it shows."""
    tab.evaluate("document.querySelector('#file-name').textContent = ''")
    tab.set_input_files("#file-input", [str(path) for path in paths])
    said = "document.querySelector('#file-name').textContent"
    error = "document.querySelector('#file-error')"
    wait(tab, f"{READY} && ({said} !== '' || !{error}.hidden)")
    return tab.inner_text("#file-error" if tab.is_visible("#file-error") else "#file-name")


def prime_rl(row: TokenRow) -> dict:
    """A sequence as prime-rl's token export has it."""
    n = len(row.logp)
    return {
        "schema_version": 1,
        "run_id": "a",
        "step": row.step,
        "export_sequence_idx": row.index,
        "token_ids": row.token_id.tolist(),  # type: ignore[union-attr]
        "trainer_logprobs": row.logp.tolist(),
        "inference_logprobs": row.logp_old.tolist(),  # type: ignore[union-attr]
        "advantages": row.advantage.tolist(),
        "loss_mask": [True] * n,
        "is_masked": [False] * n,
        "rewards": [row.reward] * n,
    }


def written(folder: Path) -> dict[str, tuple[Path, str, int]]:
    """A file of each program: where it is, what the page calls it, and tokens of its first row."""
    rows = token_files.made(6)
    own, length = [row.to_dict() for row in rows], len(rows[0].logp)
    verl = [
        {"input": f"user\n{i} + 1?\nassistant\n", "output": f"<b>{i + 1}</b>", "gts": str(i + 1),
         "score": float(i % 2), "step": 3, "acc": True}
        for i in range(6)
    ]  # fmt: skip
    document = {
        "model": "none",
        "groups": [
            {
                "prompt": "1 + 1?",
                "completions": [
                    {
                        "reward": row.reward,
                        "advantage": float(row.advantage[0]),
                        "tokens": [
                            {"token": text, "logprob": new, "old_logprob": old}
                            for text, new, old in zip(
                                given["token"], given["logp"], given["logp_old"], strict=True
                            )
                        ],
                    }
                    for row, given in zip(rows, own, strict=True)
                ],
            }
        ],
    }

    responses = [
        {
            "id": f"step3_p0_sample{row.index}",
            "reward": row.reward,
            "advantage": 0.0,
            "response_text": "".join(given["token"]),
            "tokens": {
                "ids": given["token_id"],
                "strings": given["token"],
                "log_probs": given["logp"],
                "old_log_probs": given["logp_old"],
                "advantages": given["advantage"],
                "ref_log_probs": given["logp_old"],
            },
        }
        for row, given in zip(rows, own, strict=True)
    ]
    header = {"algorithm": "ppo", "totalSteps": 1}
    step = {"step": 3, "metrics": {"reward": 0.5}}
    step["prompts"] = [{"prompt": "1 + 1?", "responses": responses}]
    whole = {"header": header, "entries": [{"step": 2, "metrics": {}}, step]}
    (folder / "unipo.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")

    def lines(name: str, given: list[dict]) -> Path:
        path = folder / name
        path.write_text("\n".join(map(json.dumps, given)) + "\n", encoding="utf-8")
        return path

    (folder / "document.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "own.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, own)).encode()))
    return {
        "own": (lines("own.jsonl", own), "tokens", length),
        "packed": (folder / "own.jsonl.gz", "tokens", length),
        "prime-rl": (lines("rank_0.jsonl", list(map(prime_rl, rows))), "prime-rl's token", length),
        "verl": (lines("3.jsonl", verl), "verl's rollouts", 0),
        "document": (folder / "document.json", "completions", length),
        "UNIPO": (folder / "unipo.json", "UNIPO's steps", length),
        "UNIPO's lines": (
            lines("unipo.jsonl", [{"type": "header", **header}, {"type": "step", **step}]),
            *("UNIPO's steps", length),
        ),
    }


def trl(path: Path) -> Path:
    """TRL's ``completions_00003.parquet``."""
    table = {
        "step": [3] * 4,
        "prompt": [[{"role": "user", "content": "2 + 2?"}]] * 4,
        "completion": [[{"role": "assistant", "content": f"<i>{i}</i>"}] for i in range(4)],
        "accuracy_reward": [0.0, 1.0, 0.0, 1.0],
        "advantage": [-1.0, 1.0, -1.0, 1.0],
    }
    pq.write_table(pa.table(table), path)
    return path


def test_files_of_every_program_open(page, tmp_path) -> None:
    given = written(tmp_path)
    with opened(page) as tab:
        wait(tab, READY)
        for name, (path, kind, length) in given.items():
            said = give(tab, path)
            assert said.startswith(f"{path.name}: 6 completions ({kind}"), name
            tab.select_option("[name=order]", "")
            wait(tab, "document.querySelector('#token-text').dataset.ready === '1'")
            assert tab.locator("#token-text > span").count() == length, name
        # a verl rollout has texts alone: they stay texts, beside problem and gold answer
        give(tab, given["verl"][0])
        assert tab.inner_text("#token-text").startswith("<b>")
        assert tab.inner_text("#token-gold .text") == "1"
        assert "0 + 1?" in tab.inner_text("#token-problem .text")
        assert not tab.is_visible("#token-tables") and "nothing to colour" in tab.inner_text("main")
        give(tab, given["UNIPO"][0])
        assert tab.inner_text("#token-problem .text") == "1 + 1?"
        several = give(tab, given["own"][0], given["prime-rl"][0])
        assert several.count("6 completions") == 2
        assert tab.inner_text("#token-status") == "12 of 12 completions."


def test_parquet_opens_where_the_build_brought_its_reader(page, tmp_path) -> None:
    path = tmp_path / "own.parquet"
    write_tokens(path, token_files.made(6))
    completions = trl(tmp_path / "completions_00003.parquet")
    with opened(page) as tab:
        wait(tab, READY)
        if not microscope.reader():
            assert f"trustclip microscope {path.name}" in give(tab, path)
            return
        assert give(tab, path) == "own.parquet: 6 completions (tokens)"
        assert tab.locator("#token-shares tbody tr").count() == 4
        assert give(tab, completions).endswith("4 completions (TRL's completions)")
        assert tab.inner_text("#token-problem .text") == "2 + 2?"
        assert "accuracy_reward 0" in tab.inner_text("#token-facts")


def test_the_command_puts_any_file_into_the_page(tmp_path, tokens) -> None:
    given = written(tmp_path)
    completions = trl(tmp_path / "completions_00003.parquet")
    out = tmp_path / "page.html"
    for path, count in ((tokens, 24), (completions, 4), (given["document"][0], 6)):
        assert main(["microscope", str(path), "-o", str(out)]) == 0
        with opened(out) as tab:
            wait(tab, READY)
            assert tab.inner_text("#token-status") == f"{count} of {count} completions."


def test_a_wrong_file_is_named_with_what_was_expected(page, tmp_path, capsys) -> None:
    cases = {
        "other.jsonl": ('{"loss": 1.0, "lr": 2}\n', "other.jsonl: found loss, lr; expected"),
        "short.jsonl": (
            '{"logp": [-1.0, -2.0], "advantage": [1.0]}\n',
            "short.jsonl:1: `advantage` has 1 entries, `logp` has 2 tokens",
        ),
        "torn.jsonl": ('{"logp": [-1.0], "advantage": 1}\n{"log', "torn.jsonl:2 is not a JSON"),
        "notes.txt": ("dear diary", "notes.txt is neither JSON, JSON lines nor Parquet"),
        "rank_0.jsonl": ('{"trainer_logprobs": [-1.0], "step": 1}\n', "no `inference_logprobs`"),
        "new.jsonl": (
            json.dumps({**prime_rl(token_files.made(1)[0]), "schema_version": 9}) + "\n",
            "version 9 of prime-rl's token export",
        ),
        "empty.json": ("[]", "empty.json holds no completion"),
    }
    with opened(page) as tab:
        wait(tab, READY)
        before = tab.inner_text("#token-status")
        for name, (text, wanted) in cases.items():
            (tmp_path / name).write_text(text)
            said = give(tab, tmp_path / name)
            assert wanted in said and "expected a file of tokens" in said, name
            assert tab.inner_text("#token-status") == before  # what was there stays
    assert main(["microscope", str(tmp_path / "notes.txt"), "-o", str(tmp_path / "a.html")]) == 2
    assert "notes.txt is neither JSON" in capsys.readouterr().err


def test_nothing_can_leave_the_page(page) -> None:
    text = page.read_text(encoding="utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])  # type: ignore[index]
    assert policy.startswith("default-src 'none';") and "connect-src" not in policy
    assert not re.search(r"<(link|script|img|iframe)[^>]+(src|href)=\"(?!data:)", text)
    with pytest.raises(AssertionError, match="Content Security Policy"), opened(page) as tab:
        wait(tab, READY)
        sent = tab.evaluate("fetch('https://example.org/').then(() => 'sent', () => 'refused')")
        assert sent == "refused"


def shares(tab) -> dict[str, tuple[int, float]]:
    """What each method would have cut: tokens and share, %."""
    rows = tab.locator("#token-shares tbody tr").all_inner_texts()
    cells = [row.split("\t") for row in rows if "\t" in row]  # others are being drawn
    return {name: (int(cut.replace(",", "")), float(share)) for name, cut, share, _ in cells}


def test_shares_and_agreement_are_those_of_shadows(page, tokens) -> None:
    methods = [tc.method(name) for name in ("clip", "atr", "dppo", "gspo", "dual_clip")]
    want = watch([tokens], methods, tc.method("clip")).metrics
    with opened(page) as tab:
        wait(tab, READY)
        give(tab, tokens)
        for name in ("gspo", "dual_clip"):
            tab.select_option("#method-add", name)
            wait(tab, READY)
        got = shares(tab)
        for method in methods:
            share = want[f"shadow/{label(method)}/gated"]
            assert got[method.name][1] / 100 == pytest.approx(share, abs=6e-4)
        heads = tab.locator("#token-agreement thead th").all_inner_texts()
        first = tab.locator("#token-agreement tbody tr").nth(0).inner_text().split("\t")
        for name, cell in zip(heads[2:], first[2:], strict=True):  # against what the run did
            jaccard = want[f"shadow/{name}/jaccard"]
            assert float(cell) / 100 == pytest.approx(jaccard, abs=6e-4)
        tab.select_option("[name=by]", "probability")
        kinds = tab.locator("#token-kinds tbody tr").all_inner_texts()
        place = tab.locator("#token-kinds thead th").all_inner_texts().index("atr")
        for row in kinds:
            cells = row.split("\t")
            key = f"shadow/atr/gated/p_old_{cells[0].replace(' to ', '_')}"
            if key in want:
                assert float(cells[place]) / 100 == pytest.approx(want[key], abs=6e-4)


def test_sliders_move_what_is_cut_and_the_suggested_threshold_has_the_share(page, tmp_path) -> None:
    path = token_files.write(tmp_path / "many.jsonl", 60)
    with opened(page) as tab:
        wait(tab, READY)
        give(tab, path)
        before = shares(tab)["clip"][0]
        exact = tab.locator("input[aria-label='epsilon of clip, exact']")
        exact.fill("0.05")
        exact.press("Tab")
        until(lambda: "clip epsilon=0.05" in shares(tab))
        assert shares(tab)["clip epsilon=0.05"][0] > before
        assert 'tc.method("clip", epsilon=0.05)' in tab.inner_text("#methods-used")
        tab.fill("#suggest-share", "3")
        tab.click("#suggest")
        wait(tab, f"document.querySelector('#suggest-note').textContent !== '' && {READY}")
        said = tab.inner_text("#suggest-note")
        for name in ("clip", "atr"):
            found = suggest(tc.method(name), 0.03, [path])
            ((_, value),) = re.findall(rf"{name}: (\w+) = ([\d.e-]*\d)", said)
            (want,) = found.moved.values()
            assert want[0] * 0.98 <= float(value) <= want[2] * 1.02
        got = {name.split()[0]: share for name, (_, share) in shares(tab).items()}
        assert got["clip"] <= 3 and got["atr"] <= 3


def test_the_keyboard_walks_the_list_and_a_reader_hears_where_it_is(page, tokens) -> None:
    with opened(page) as tab:
        wait(tab, READY)
        give(tab, tokens)
        box = tab.locator("#token-list")
        box.focus()
        for key, place in (("ArrowDown", 2), ("j", 3), ("k", 2), ("End", 24), ("Home", 1)):
            tab.keyboard.press(key)
            here = tab.locator(f"#{box.get_attribute('aria-activedescendant')}")
            assert here.get_attribute("aria-posinset") == str(place), key
            assert here.get_attribute("aria-selected") == "true"
            assert here.get_attribute("aria-setsize") == "24"
        unnamed = tab.evaluate(
            "[...document.querySelectorAll('main input, main select, main button')].filter(e =>"
            " !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent).length"
        )
        assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_no_page_is_wider_than_its_window(page, width, scheme) -> None:
    size = {"width": width, "height": 800}
    with opened(page, viewport=size, color_scheme=scheme) as tab:
        wait(tab, READY)
        for name in ("dual_clip", "trgppo"):
            tab.select_option("#method-add", name)
            wait(tab, READY)
        for details in tab.locator("details").all():
            details.evaluate("e => { e.open = true; }")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.slow
def test_fifty_megabytes_open_and_scroll(page, tmp_path) -> None:
    """The list holds a few of its rows at a time; how long it takes: benchmarks/RESULTS.md."""
    rows = [json.dumps(row.to_dict()) for row in token_files.made(200)]
    text = ("\n".join(rows) + "\n").encode()
    path = tmp_path / "large.jsonl"
    times = -(-(50 << 20) // len(text))
    path.write_bytes(text * times)
    with opened(page) as tab:
        wait(tab, READY)
        assert f": {200 * times:,} completions" in give(tab, path)
        assert tab.locator("#token-rows .row").count() < 60
        tab.locator("#token-list").focus()
        tab.keyboard.press("End")
        last = tab.locator(f"#row-{200 * times - 1}")
        assert last.get_attribute("aria-selected") == "true"
        assert tab.locator("#token-rows .row").count() < 60
