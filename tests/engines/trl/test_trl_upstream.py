"""The lists of what the engine uses of TRL are complete, and the installed release has it all."""

import ast
import inspect
import textwrap
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import trl
from trl.trainer import grpo_trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from trustclip.engines import trl as engine
from trustclip.engines.trl import trainer, upstream
from trustclip.engines.trl.recording.records import Recorded

OURS = "ConstrainedGRPOTrainer"
ASYNCHRONOUS = Path(engine.__file__).parent / "asynchronous.py"
SOURCES = sorted({*Path(engine.__file__).parent.rglob("*.py")} - {ASYNCHRONOUS})
TRL = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer)))


def attributes(tree: ast.AST, *names: str) -> set[str]:
    """Attributes that the code takes of variables of these names, and of `super()`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value
            if isinstance(of, ast.Call):
                of = of.func
            if isinstance(of, ast.Name) and of.id in (*names, "super"):
                found.add(node.attr)
    return found


def defined(tree: ast.AST) -> set[str]:
    """Methods and attributes of instances that a class defines."""
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    (own,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    targets = [
        target
        for node in own.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    assigned = {target.id for target in targets if isinstance(target, ast.Name)}
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {name for name in methods | assigned | stored if not name.startswith("__")}


def keys(tree: ast.AST) -> set[str]:
    """Text constants by which `inputs` or `output` are read or written, and keys of `output`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ast.Name("inputs" | "output"), ast.Constant(str(key))):
                found.add(key)
            case ast.Call(
                ast.Attribute(ast.Name("inputs" | "output")), [ast.Constant(str(key)), *_]
            ):
                found.add(key)
            case ast.Assign([ast.Name("output")], ast.Dict(names)):
                found |= {name.value for name in names if isinstance(name, ast.Constant)}
    return found


def test_the_list_of_members_is_complete():
    used = set()
    for path in SOURCES:
        if path.name == "config.py":
            continue  # its `self` is no trainer
        tree = ast.parse(path.read_text())
        used |= attributes(tree, "self", "trainer")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == OURS:
                used |= defined(ast.Module([node], []))
                carried = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                used |= {value for value in carried if isinstance(value, str)}
    listed = {*upstream.MEMBERS, *upstream.PARAMETERS} - {"__init__"}
    assert used & defined(TRL) == listed and len(listed) > len(upstream.MEMBERS)


def test_the_list_of_keys_is_complete():
    used = set().union(*(strings(ast.parse(path.read_text())) for path in SOURCES))
    assert sorted(used & keys(TRL)) == sorted(upstream.INPUT_KEYS)


def test_the_lists_of_the_asynchronous_trainer_are_complete():
    theirs = ast.parse(textwrap.dedent(inspect.getsource(upstream.asynchronous_trainer())))
    ours = ast.parse(ASYNCHRONOUS.read_text())
    (own,) = [n for n in ours.body if isinstance(n, ast.ClassDef) and n.name.startswith("Constr")]
    used = attributes(ours, "self") | defined(ast.Module([own], []))
    assert sorted(used & defined(theirs)) == sorted(upstream.ASYNC_MEMBERS)
    assert sorted(strings(ours) & keys(theirs)) == sorted(upstream.ASYNC_KEYS)


def strings(tree: ast.AST) -> set[str]:
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {value for value in constants if isinstance(value, str)}


def test_the_list_of_overridden_methods_is_complete():
    ours = {name for kind in (trainer.ConstrainedGRPOTrainer, Recorded) for name in vars(kind)}
    theirs = {name for name, value in vars(GRPOTrainer).items() if callable(value)}
    assert sorted(ours & theirs) == sorted(upstream.PARAMETERS)


def test_the_installed_release_has_every_member_and_key():
    missing = {*upstream.MEMBERS} - defined(TRL), {*upstream.INPUT_KEYS} - keys(TRL)
    assert missing == (set(), set()), (
        f"trl {trl.__version__} lacks {missing}: see trustclip.engines.trl.upstream"
    )
    assert upstream.lacking(GRPOTrainer) == [*upstream.misfits(GRPOTrainer)] == []


def doctored(*edits: tuple[str, str]) -> type:
    """The installed `GRPOTrainer` as another release might have it: its source with edits."""
    source = inspect.getsource(grpo_trainer)
    for before, after in edits:
        assert before in source, before
        source = source.replace(before, after)
    module = ModuleType(grpo_trainer.__name__)
    module.__package__ = "trl.trainer"
    exec(compile(source, "doctored", "exec"), vars(module))
    return vars(module)["GRPOTrainer"]


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (
            [("def _calculate_rewards(", "def _rewards_of(")],
            "no _calculate_rewards, which trustclip.engines.trl uses",
        ),
        ([("self._step ", "self._micro_step ")], "no _step, which"),
        ([('"old_per_token_logps"', '"behaviour_logps"')], "no old_per_token_logps, which"),
        (
            [("def _compute_loss(self, model, inputs", "def _compute_loss(self, model, inputs, n")],
            r"_compute_loss takes \(model, inputs, n\) and not \(model, inputs\)",
        ),
        (
            [(" attention_mask,\n        logits_to_keep,", " logits_to_keep,\n        mask,")],
            r"takes \(model, input_ids, logits_to_keep, .* and not \(model, input_ids, attention_",
        ),
        (
            [("return logps, entropies, aux_loss", "return logps, entropies, aux_loss, None")],
            "_get_per_token_logps_and_entropies returns 4 values and not 3",
        ),
    ],
    ids=["method", "attribute", "key", "parameter", "order", "values"],
)
def test_a_release_of_another_shape_is_refused_by_what_is_other(edits, words):
    with pytest.raises(ImportError, match=r"trl 9\.1\.0 is not supported: .*" + words) as error:
        upstream.check_release("9.1.0", doctored(*edits))
    assert "1.16" in str(error.value)


def test_a_release_with_every_member_runs_with_a_notice():
    with pytest.warns(UserWarning, match=r"trl 9\.1\.0 was not tested"):
        upstream.check_release("9.1.0", GRPOTrainer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upstream.check_release("1.16.3", type("Empty", (), {}))  # tested: not looked into
