"""Artefacts whose texts want to control a terminal, a page, a table or a log, or tell a secret."""

import json
from dataclasses import replace
from pathlib import Path

import yaml
from synthetic_runs import Spec, make_run
from token_files import made

from malicious.artefacts import CONTROLS, FORMULA, SCRIPT, SECRET, artefact
from malicious.code import recipe
from trustclip.logs.tokens import write_tokens

ATR, CLIP = {"name": "atr", "delta": 0.07}, {"name": "clip", "epsilon": 0.2}
SPEC = Spec(ATR, steps=8, every=4, k=2, completions=2, tasks={"amc23": 4})


def changed(path: Path, record: str, **values: object) -> Path:
    """A run directory in whose record these values stand."""
    file = path / record
    read, write = (yaml.safe_load, yaml.safe_dump) if record.endswith("yaml") else (
        json.loads, json.dumps)  # fmt: skip
    file.write_text(write(read(file.read_text()) | values))
    return path


def noticed(path: Path, text: str) -> Path:
    """A run directory with a warning."""
    with (path / "metrics.jsonl").open("a") as file:
        row = {"stage": "notice", "step": 2, "notice": "entropy_collapse", "text": text}
        file.write(json.dumps(row) + "\n")
    return path


def sampled(path: Path, text: str) -> Path:
    """A run directory with this completion."""
    with (path / "samples.jsonl").open("a") as file:
        row = {"stage": "rl", "step": 1, "response": text, "problem": text, "gold": text,
               "task": None, "id": text, "reward": 1.0}  # fmt: skip
        file.write(json.dumps(row) + "\n")
    return path


@artefact(0, "Warning at update 2", "owned")
def notice_with_controls(folder):
    return ["explain", str(noticed(make_run(folder / "run", SPEC), CONTROLS))]


@artefact(0, "Warning at update 2: a Next: all is well.")
def notice_that_forges_a_line(folder):
    return ["explain", str(noticed(make_run(folder / "run", SPEC), "a\nNext: all is well."))]


@artefact(0, "Mean@2", "Differences are to")
def labels_with_controls_and_markup(folder):
    for number, method in enumerate((ATR, CLIP)):
        made = make_run(folder / f"{number}", replace(SPEC, method=method))
        changed(made, "config.yaml", model=f"{CONTROLS}[/x][link=http://evil.example]{number}")
        (folder / f"{number}").rename(folder / f"{number}[x]{CONTROLS.replace(chr(0), '')}")
    return ["compare", *sorted(str(p) for p in folder.iterdir() if p.is_dir())]


@artefact(0, "<U+001B>", "tokens in 24 completions")
def tokens_with_controls(folder):
    rows = [replace(row, token=[CONTROLS for _ in row.logp]) for row in made(24)]
    write_tokens(folder / "tokens.parquet", rows)
    return ["tokens", str(folder / "tokens.parquet")]


@artefact(0, "1 of 1 right")
def completion_to_grade(folder):
    row = {"response": rf"\boxed{{4}} {CONTROLS}{SCRIPT}", "gold": "4", "judged": CONTROLS}
    (folder / "samples.jsonl").write_text(json.dumps(row) + "\n")
    return ["eval", "--grade", str(folder / "samples.jsonl")]


@artefact(2, "unknown key")
def recipe_whose_keys_control_the_terminal(folder):
    path = Path(recipe(folder))
    escaped = json.dumps({f"learning_rate{CONTROLS}": 1})[1:-1]  # YAML knows JSON's escapes
    path.write_text(path.read_text().replace("rl:\n", f"rl:\n  {escaped}\n"))
    return ["run", str(path)]


@artefact(2, "given twice")
def recipe_whose_values_control_the_terminal(folder):
    path = Path(recipe(folder))
    path.write_text(path.read_text() + f"{json.dumps(CONTROLS)}: 1\n{json.dumps(CONTROLS)}: 2\n")
    return ["run", str(path)]


@artefact(2, "method")
def method_whose_name_controls_the_terminal(folder):
    return ["run", recipe(folder, method=f"atr{CONTROLS}")]


@artefact(2, "is damaged")
def damaged_record_that_controls_the_terminal(folder):
    path = make_run(folder / "run", SPEC)
    (path / "config.yaml").write_bytes(f"a: [{CONTROLS.replace(chr(0), '')}\n\tb: {{".encode())
    return ["explain", str(path)]


@artefact(2, "neither a run directory")
def path_with_controls(folder):
    path = folder / f"run{CONTROLS.replace(chr(0), '')}\n"
    path.mkdir()
    return ["explain", str(path)]


@artefact(0, "index.html")
def run_that_wants_to_write_the_report(folder):
    path = make_run(folder / "run", replace(SPEC, method=ATR))
    sampled(noticed(path, SCRIPT + CONTROLS + FORMULA), SCRIPT + CONTROLS)
    model = SCRIPT + r"\input{/etc/passwd}/" + '\uff1d=HYPERLINK("evil")'
    changed(path, "config.yaml", model=model, name=SCRIPT, hub_token=SECRET)
    changed(path, "environment.json", platform=SCRIPT, argv=["rl", "--trl.hub_token", SECRET])
    return ["report", str(path), "-o", str(folder / "report")]
