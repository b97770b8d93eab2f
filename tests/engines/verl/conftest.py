"""Tests of the engine for verl, which has an environment of its own: `make verl-setup`."""

#: For verl's processes, no places of tests.
collect_ignore = ["verl_on_cpu", "fsdp_worker.py", "sequence_processes.py"]
