"""Control: the same methods in PPO on Gymnasium environments.

What was published on control (TRPO, Truly PPO, TRGPPO) meets here what was published on language
models, in minutes on a CPU, with exact KL divergences in closed form. Needs the extra ``control``.
"""

from trustclip_lab.control.suite import PRESETS, ControlSettings, run_control

__all__ = ["PRESETS", "ControlSettings", "run_control"]
