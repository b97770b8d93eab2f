"""The lists of what the engine uses of TRL are complete, and the installed release has it all."""

import ast
import inspect
import textwrap
import warnings
from pathlib import Path
from types import FunctionType

import pytest
import trl
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from trustclip.engines import trl as engine
from trustclip.engines.trl import upstream
from trustclip.train.durable import trainer

SOURCES = sorted(Path(engine.__file__).parent.rglob("*.py"))
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
        tree = ast.parse(path.read_text())
        used |= attributes(tree, "self", "trainer")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == "ConstrainedGRPOTrainer":
                used |= defined(ast.Module([node], []))
                carried = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                used |= {value for value in carried if isinstance(value, str)}
    assert sorted(used & defined(TRL)) == sorted(upstream.MEMBERS)


def test_the_list_of_keys_is_complete():
    used = set().union(*(strings(ast.parse(path.read_text())) for path in SOURCES))
    assert sorted(used & keys(TRL)) == sorted(upstream.INPUT_KEYS)


def strings(tree: ast.AST) -> set[str]:
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {value for value in constants if isinstance(value, str)}


def test_the_list_of_private_members_of_transformers_is_complete():
    tree = ast.parse(Path(trainer.__file__).read_text())
    used = attributes(tree, "self", "trainer")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Durable":
            used |= defined(ast.Module([node], []))
    theirs = defined(ast.parse(textwrap.dedent(inspect.getsource(Trainer))))
    private = {name for name in used & theirs if name.startswith("_")}
    assert sorted(private) == sorted(upstream.TRANSFORMERS_MEMBERS)


def test_the_installed_release_has_every_member_and_key():
    missing = {*upstream.MEMBERS} - defined(TRL), {*upstream.INPUT_KEYS} - keys(TRL)
    assert missing == (set(), set()), (
        f"trl {trl.__version__} lacks {missing}: see trustclip.engines.trl.upstream"
    )
    assert upstream.lacking(GRPOTrainer) == []


def test_a_release_without_a_member_is_named_with_what_it_lacks():
    members = dict(vars(GRPOTrainer))
    del members["_generate_and_score_completions"]  # which nothing but `_prepare_inputs` calls
    del members["_prepare_inputs"]
    less = type("Less", (), {n: v for n, v in members.items() if isinstance(v, FunctionType)})
    assert "_generate_and_score_completions" in upstream.lacking(less)
    assert "_compute_loss" not in upstream.lacking(less)
    with pytest.raises(
        ImportError, match=r"trl 9\.1\.0 is not supported: .* _compute_loss"
    ) as error:
        upstream.check_release("9.1.0", type("Empty", (), {}))
    assert "1.16" in str(error.value)


def test_a_release_with_every_member_runs_with_a_notice():
    with pytest.warns(UserWarning, match=r"trl 9\.1\.0 was not tested"):
        upstream.check_release("9.1.0", GRPOTrainer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upstream.check_release("1.16.3", type("Empty", (), {}))  # tested: not looked into
