"""Artefacts whose addresses want a file, a key, a terminal or a connection, and logs of others."""

import json
from pathlib import Path

import yaml
from synthetic_runs import make_run

from malicious.artefacts import CONTROLS, FORMULA, SCRIPT, SECRET, artefact, enter
from malicious.code import EVIL, IMPORTS, evaluation
from malicious.text import SPEC

ROOT = Path(__file__).parents[3]


def served(folder: Path, address: str) -> list[str]:
    """An evaluation that asks a server."""
    return [*evaluation(folder, "m"), "--backend", "openai", "--base-url", address]


#: Addresses of servers, and what must be said of them.
for _name, _address, _says in (
    ("that_is_a_file", "file:///etc/passwd", "must start with http:// or https://"),
    ("of_a_protocol_with_a_password", f"ftp://me:{SECRET}@evil.example/v1", "must start with http"),
    ("without_a_name", "http:///v1", "names no server"),
    ("whose_port_is_no_number", "http://evil.example:port/v1", "names no server"),
    ("whose_address_controls_the_terminal", f"http://evil.example/{CONTROLS}", "holds a space or"),
    ("whose_address_adds_a_header", "http://evil.example/v1\r\nX-Injected: yes", "a control chara"),
):
    enter(f"server_{_name}", lambda folder, to=_address: served(folder, to), 2, _says)


@artefact(2, "no file https:/evil.example/data.jsonl")
def data_set_that_is_an_address(folder):
    return ["sft", "--model", "tiny", "--dataset", "https://evil.example/data.jsonl",
            "--output-dir", str(folder / "run")]  # fmt: skip


@artefact(2, "no model 'https://evil.example/model'")
def model_that_is_an_address(folder):
    return evaluation(folder, "https://evil.example/model")


@artefact(0, "trainer_state.json")
def log_of_another_trainer(folder):
    rows = [{"step": i, "loss": 1.0 / i, "reward": 0.5, f"kl{CONTROLS}": 0.1, SCRIPT: FORMULA,
             "trustclip/gated": 0.1} for i in range(1, 9)]  # fmt: skip
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    return ["explain", str(folder / "trainer_state.json")]


@artefact(2, "no log that can be read")
def log_of_nobody(folder):
    (folder / "log.jsonl").write_text(json.dumps({"step": 1, f"kl{CONTROLS}": SCRIPT}))
    return ["explain", str(folder / "log.jsonl")]


@artefact(2, "no usable problem")
def table_of_problems_full_of_formulas(folder):
    (folder / "data.csv").write_text(f'problem,answer\n"{FORMULA.replace(chr(34), "")}{SCRIPT}",\n')
    return ["rl", "--model", "tiny", "--dataset", str(folder / "data.csv"),
            "--output-dir", str(folder / "run")]  # fmt: skip


def plan(folder: Path, **values: object) -> Path:
    """A plan of the arena whose one constraint is a class."""
    known = yaml.safe_load((ROOT / "lab/src/trustclip_lab/recipes/arena/arena.yaml").read_text())
    own = {"constraints": {"mine": {"name": EVIL}}, "reference": "mine", "contrasts": {},
           "controls": {}, "output_dir": str(folder)}  # fmt: skip
    path = folder / "arena.yaml"
    path.write_text(yaml.safe_dump(known | own | values))
    return path


@artefact(2, *IMPORTS)
def arena_that_names_a_class(folder):
    return ["arena", str(plan(folder))]


@artefact(2, *IMPORTS)
def run_to_be_resumed_that_names_a_class(folder):
    path = make_run(folder / "run", SPEC)
    values = yaml.safe_load((path / "config.yaml").read_text())
    values["rl"]["method"] = EVIL
    (path / "config.yaml").write_text(yaml.safe_dump(values))
    return ["resume", str(path)]
