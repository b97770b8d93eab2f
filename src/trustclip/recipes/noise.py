"""Reward noise: a share of the rewards is flipped, the same ones whenever a run is repeated."""

import hashlib


def flipped(share: float, seed: int, problem: str, sample: str) -> bool:
    """Whether the reward of a sample is flipped.

    Decided by a hash of the sample's key, so that it does not depend on the order of computation,
    the rank, or earlier random numbers.

    Args:
      share: of all samples, in [0, 1].
      seed: of the run.
      problem: its id.
      sample: distinguishes the samples of a problem: the update they were drawn at, and an index.

    Example:
      >>> sum(flipped(0.1, 0, "p", f"3/{i}") for i in range(10_000)) / 10_000
      0.099
    """
    key = f"{seed}/{problem}/{sample}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") < share * 2.0**64
