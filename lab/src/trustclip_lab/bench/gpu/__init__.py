"""What a GPU settles: correctness, speed and memory, in stages that resume."""

#: Stage -> its module, the most telling first. Each module has a `STAGE`.
STAGES = {"correctness": "correctness", "head": "race", "step": "training_step"}
