"""The correctness stage on the GPU's path: kernels in Triton's interpreter, factors in bfloat16.

For `test_bench_gpu.py`, in a process of its own: Triton decides on import whether it interprets.
"""

import json
import tempfile
from pathlib import Path

from on_cuda import OnCuda

from trustclip_lab.bench.gpu import correctness, kernels
from trustclip_lab.bench.gpu.cases import Place

#: Cases in which the path differs from one to the other; the rest differ in shapes.
CASES = (
    "float32",
    "bfloat16",
    "peaked, bfloat16",
    "masked vocabulary, bfloat16",
    "one row",
)


def main() -> None:
    calls: list[str] = []
    for name in ("fold", "fold_gradient"):
        made = getattr(kernels, name)
        setattr(kernels, name, lambda *a, _made=made, _name=name: (calls.append(_name), _made(*a)))
    found = {}
    place = Place("cpu", True, Path(tempfile.gettempdir()))
    for case in correctness.cases(place):
        if case.key in CASES:
            with OnCuda(), kernels.in_head():
                found[case.key] = case.run(place)
    print(json.dumps({"cases": found, "kernels": sorted(set(calls))}))


if __name__ == "__main__":
    main()
