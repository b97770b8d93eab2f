"""A data set of one's own, its columns, a recipe for it: `python examples/own_data.py [FOLDER]`.

The task: which digit comes last? The rows have names that no trainer knows, and `columns` says what
they are; a dot enters a nested column. What is written runs by `trustclip run FOLDER/recipe.yaml`,
a minute of CPU time.
"""

import itertools
import json
import random
import sys
from pathlib import Path

RECIPE = """\
name: last-digit
model: tiny            # or a folder, or a hub id
output_dir: {folder}/run
sft:
  dataset: {folder}/train.jsonl
  columns: {{prompt: ask.text, answer: gold, solution: worked}}
  prompt_style: plain
  max_steps: 60
  learning_rate: 3e-3
  per_device_train_batch_size: 32
rl:
  dataset: {folder}/train.jsonl
  columns: {{prompt: ask.text, answer: gold, kind: level}}   # rewards get `kind`
  prompt_style: plain
  method: {{name: atr, delta: 0.07}}
  reward: [correct, {{name: format, weight: 0.1}}]
  per_device_train_batch_size: 32
  gradient_accumulation_steps: 1
  steps_per_generation: 4
  max_completion_length: 16
  learning_rate: 3e-4
  max_steps: 16
  lora_r: 0
eval:
  tasks: {folder}/test.jsonl
  columns: {{prompt: ask.text, answer: gold}}
  prompt_style: plain
  k: 4
  max_tokens: 16
"""


def row(digits: str) -> dict[str, object]:
    """One problem; half of the worked solutions are wrong, so that there is something to learn."""
    last = digits[-1] if random.Random(digits).random() < 0.5 else digits[0]
    return {
        "ask": {"text": f"last of {' '.join(digits)}?"},
        "gold": digits[-1],
        "worked": f"<SOLUTION>{last}</SOLUTION>",
        "level": len(digits),
    }


def write(folder: Path) -> Path:
    """Write training rows, test rows and the recipe; returns the recipe's file."""
    every = ["".join(digits) for digits in itertools.product("123456789", repeat=3)]
    random.Random(0).shuffle(every)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", every[:512]), ("test", every[512:576])):
        lines = [json.dumps(row(digits)) for digits in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=folder), encoding="utf-8")
    return recipe


if __name__ == "__main__":
    print(f"trustclip run {write(Path(*(sys.argv[1:] or ['own-data'])))}")
