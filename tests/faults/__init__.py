"""Faults from a seed: disks, processes, suites, verifiers, damaged files, odd numbers and texts.

``python -m tests.faults --help`` lists the campaigns; `docs/reliability.md` says what they found.
"""
