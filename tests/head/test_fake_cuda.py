"""What runs on a GPU, checked without one: devices, dtypes, and what Python waits for."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import script

#: Most that a call may wait for the GPU; anything else waits for nothing.
WAITS = {
    "score": ["tolist"],
    "backward": ["nonzero"],
    "rows_that_matter": ["nonzero"],
    "clip_ratios": ["tolist"],
    "coefficient, kl_cov": ["mask"],
    "coefficient, m2po": ["mask"],
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = script(Path(__file__).parents[1] / "support" / "fake_cuda_cases.py")
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_meets_a_tensor_of_another_device(found: dict[str, Any]) -> None:
    wrong = {name: case["error"] for name, case in found.items() if "error" in case}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    assert all(case["devices"] in ([], ["cuda:0"]) for case in found.values())


def test_python_waits_for_the_device_where_it_must_and_nowhere_else(found: dict[str, Any]) -> None:
    for name, case in found.items():
        allowed = WAITS.get(name, WAITS.get(name.partition(",")[0], []))
        assert len(case["waits"]) <= len(allowed) and {*case["waits"]} <= {*allowed}, (name, case)


def test_a_coefficient_is_float32_and_gradients_have_their_tensor_s_dtype(
    found: dict[str, Any],
) -> None:
    for name, case in found.items():
        if name.startswith("coefficient"):
            assert case["dtypes"] == ["float32"], name
        if name.startswith("backward"):
            assert {*case["dtypes"]} == {name.split()[1]}, name
            assert len(case["dtypes"]) == (2 if name.endswith("trained") else 1)
    assert found["score, bfloat16 frozen"]["dtypes"][:3] == ["float32", "float32", "float64"]


def test_the_probe_sees_what_it_is_for(found: dict[str, Any]) -> None:
    """Mistakes on purpose."""
    assert found["broken: a tensor of the CPU"]["seen"].startswith("FakeTensorDeviceMismatch")
    assert found["broken: a number is read"]["seen"] == ["item"]
    assert found["broken: a mask is applied"]["seen"] == ["mask"]
