"""The sample of the microscope: `python benchmarks/microscope_sample.py RUN`.

RUN is a run directory of SmolLM2; the sample in the package is of one that release 0.2 sampled from
weights rounded to 8 bits (`trustclip demo --model smollm2 --sampler.dtype int8`). Of its recorded
completions those with the most cut tokens of each update go into the package, numbers to six
digits.
"""

import argparse
import json
from itertools import groupby
from pathlib import Path

import numpy as np

import trustclip
from trustclip.logs.recognise import token_rows
from trustclip.logs.tokens import TOKENS, TokenRow
from trustclip.report.microscope import problems_in

TO = Path(trustclip.__file__).parent / "report/sample.jsonl"
#: Completions of each update, and of all.
EACH, MOST = 6, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    chosen = []
    for _, rows in groupby(token_rows(run / TOKENS), key=lambda row: row.step):
        chosen += sorted(rows, key=lambda row: -_cut(row))[:EACH]
    problems = problems_in(run)
    lines = []
    for row in chosen[:MOST]:
        problem, gold = problems[row.generated, row.index]
        fields = {k: v for k, v in row.to_dict().items() if k != "token_id"}
        lines.append(json.dumps(_short({**fields, "problem": problem, "gold": gold})))
    TO.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cut(row: TokenRow) -> int:
    return 0 if row.kept is None else int((row.mask & ~row.kept).sum())


def _short(value):
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return None if np.isnan(value) else float(f"{value:.6g}")


if __name__ == "__main__":
    main()
