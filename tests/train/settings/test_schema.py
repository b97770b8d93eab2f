"""The JSON Schemas take every shipped file and refuse what a recipe cannot hold."""

import fastjsonschema
import pytest
from extensions.schemas import Kind, schema, text
from test_recipe_files import WRONG, altered

from trustclip.cli.main import main
from trustclip.support.jsonl import plain
from trustclip.train.files import load_recipe, load_yaml
from trustclip.train.shipped import FOLDER, MODELINE, command_of, copy_shipped, shipped

KINDS: dict[str, Kind] = {"run": "recipe", "suite": "suite"}
FILES = {
    name: path for name, path in shipped().items() if command_of(path) in KINDS
}  # those of the laboratory have settings of their own


@pytest.fixture(scope="module")
def valid():
    """Of each kind, what raises for a wrong document."""
    return {k: fastjsonschema.compile(schema(k), use_default=False) for k in KINDS.values()}


@pytest.mark.parametrize("kind", KINDS.values())
def test_the_shipped_schema_is_made_from_the_classes(kind, capsys):
    there = (FOLDER / "schema" / f"{kind}.json").read_text(encoding="utf-8")
    assert there == text(kind), (
        f"python docs/extensions/schemas.py {kind} > recipes/schema/{kind}.json"
    )
    assert main(["recipes", "--schema", kind]) == 0
    assert capsys.readouterr().out == there


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_every_shipped_file_is_valid_and_says_where_its_schema_is(path, valid):
    kind = KINDS[command_of(path)]
    valid[kind](load_yaml(path)[0])
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(MODELINE)
    named = path.parent / first.removeprefix(MODELINE)
    assert named.resolve() == (FOLDER / "schema" / f"{kind}.json").resolve()


def test_a_copy_names_no_path_of_this_machine(tmp_path):
    assert MODELINE not in copy_shipped("tiny", tmp_path).read_text(encoding="utf-8")


def test_what_a_run_records_is_valid(valid):
    valid["recipe"]({"command": "run", **plain(load_recipe(FILES["tiny"]))})


#: Wrong for a reason that is in no single value: another value, a file, TRL, or how Python reads
#: text; only the command says these.
BEYOND = {
    ("rl.learning_rate", "nan"),
    ("rl.learning_rate", "inf"),
    ("rl.num_generations", "6"),
    ("rl.gradient_accumulation_steps", "4"),
    ("rl.dataset", "arithmetc"),
    ("rl.dataset", "nowhere/train.jsonl"),
    ("rl.trl", "{'adam_beta22': 0.9}"),
    ("rl.trl", "{'adam_beta2': 'high'}"),
    ("sft.max_steps", "0"),
    ("sft.dataset", "aime42"),
    ("eval.tasks", "aime42"),
    ("eval.tasks", " , "),
    ("model", "./no/such/model"),
}


def test_the_recipe_that_the_wrong_ones_are_made_of_is_valid(valid):
    valid["recipe"](altered("seed", 3))


@pytest.mark.parametrize(("where", "value", "told"), WRONG, ids=lambda x: str(x)[:40])
def test_a_wrong_recipe_is_refused(where, value, told, valid):
    if (where, str(value)) in BEYOND:
        valid["recipe"](altered(where, value))
        return
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        valid["recipe"](altered(where, value))


@pytest.mark.parametrize(
    "value",
    [
        "my_methods.py:Mine",
        {"name": "atr", "delta": {"controller": "target_gate", "share": 0.02}},
        {"name": "both", "first": "atr", "second": {"name": "clip", "epsilon": 0.1}},
        {"name": "centered", "inner": {"name": "atr", "delta": 0.05}},
        {"name": "my_pkg.mine:Mine", "anything": 3},
    ],
    ids=str,
)
def test_methods_of_every_form_are_valid(value, valid):
    valid["recipe"](altered("rl.method", value))


def test_every_key_has_its_words():
    made = schema("recipe")
    for name in ("RLStage", "SFTStage", "RecipeEval", "Prompt"):
        for key, field in made["$defs"][name]["properties"].items():
            assert field.get("description") or field.get("deprecated"), (name, key)
