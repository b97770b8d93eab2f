"""Presets of ``trustclip lab`` and ``trustclip arena``, which these take by name."""

from pathlib import Path

LAB, ARENA = Path(__file__).with_name("lab"), Path(__file__).with_name("arena")
