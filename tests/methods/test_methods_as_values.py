"""What every method owes, whoever wrote it: a value that can be written down, read and refused."""

import dataclasses
import itertools
import math
import pickle
import typing

import pytest
import yaml
from method_cases import KNOWN, every_method, every_name, random_batch

import trustclip as tc
from trustclip.cli.commands.constraints import method_of


@every_method
def test_pickle_round_trip(method: tc.Method) -> None:
    assert pickle.loads(pickle.dumps(method)) == method


@every_method
def test_yaml_round_trip(method: tc.Method) -> None:
    for one in (method, scaled(method)):
        assert tc.method(**yaml.safe_load(yaml.safe_dump(one.to_dict()))) == one


@every_method
def test_command_line_round_trip(method: tc.Method) -> None:
    one = scaled(method)
    values = {k: v for k, v in one.to_dict().items() if k != "name"}
    texts = {k: yaml.safe_dump(v) if isinstance(v, dict) else str(v) for k, v in values.items()}
    flags = [part for k, v in texts.items() for part in (f"--{k.replace('_', '-')}", v)]
    assert method_of([one.name, *flags], "bounds") == one


def scaled(method: tc.Method) -> tc.Method:
    """The method with every number moved off its default, where that is allowed."""
    values = method.to_dict()
    for key, value in values.items():
        for factor in (0.9, 1.1):
            if not isinstance(value, float):
                continue
            try:
                tc.method(**{**values, key: value * factor})
            except ValueError:
                continue
            values[key] = value * factor
            break
    return tc.method(**values)


def number_fields(name: str) -> list[str]:
    return [k for k, v in tc.method(name).to_dict().items() if isinstance(v, float)]


@every_name
def test_a_wrong_parameter_name_is_refused_with_the_right_one(name: str) -> None:
    for field in tc.method(name).to_dict():
        if field == "name":
            continue
        with pytest.raises(ValueError, match=f"{field}s.*'{field}'"):
            tc.method(name, **{f"{field}s": 1})


@every_name
def test_a_wrong_value_is_refused_by_the_name_of_its_field(name: str) -> None:
    wrong: list[typing.Any] = [math.nan, math.inf, -math.inf, "abc", [1.0]]
    for field, value in itertools.product(number_fields(name), wrong):
        with pytest.raises(ValueError, match=field):
            tc.method(name, **{field: value})


@pytest.mark.parametrize("name", KNOWN)
def test_a_threshold_is_positive(name: str) -> None:
    for field in number_fields(name):
        if field.startswith("cov_"):  # a covariance has either sign
            continue
        with pytest.raises(ValueError, match=field):
            tc.method(name, **{field: -1.0})
        # 0: the lower bound rises up to ratio 1; nothing is paid for what was projected away.
        if (name, field) in (("bapo", "low_limit"), ("troll", "alpha")):
            continue
        if field not in ("low", "high", "slope_likelihood"):
            with pytest.raises(ValueError, match=field):
                tc.method(name, **{field: 0.0})


@every_method
def test_a_missing_field_is_named(method: tc.Method) -> None:
    complete = random_batch(method)
    for field in method.requires:
        without = dataclasses.replace(complete, **{field: None})
        for use in (tc.policy_loss, tc.coefficient, lambda m, b: m.surrogate(b)):
            with pytest.raises(ValueError, match=f"`{field}`"):
                use(method, without)


@every_method
def test_a_method_is_frozen(method: tc.Method) -> None:
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, 1)


@every_name
def test_docstring_has_formula_reference_and_example(name: str) -> None:
    text = tc.methods()[name].__doc__ or ""
    assert "$" in text
    for section in ("References:", "Example", ">>>"):
        assert section in text
    for field in tc.method(name).to_dict():
        assert field == "name" or f"{field}:" in text, f"{field} is not documented"


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("clip", {"epsilon": 1.5}, "epsilon"),
        ("clip_higher", {"low": 1.5}, "low"),
        ("dual_clip", {"ceiling": 0.9}, "ceiling"),
        ("dual_clip", {"high": 2.5}, "ceiling"),
        ("clip_cov", {"cov_low": 5.0, "cov_high": 1.0}, "cov_low"),
        ("clip_cov", {"share": 1.5}, "share"),
        ("clip_cov", {"seed": 0.5}, "seed"),
        ("truly_ppo", {"slope": -1.0}, "slope"),
        ("atr", {"delta": True}, "delta"),
        ("atr", {"delta": None}, "delta"),
    ],
)
def test_values_that_make_no_constraint(
    name: str, parameters: dict[str, typing.Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}.*`{named}`"):
        tc.method(name, **parameters)
