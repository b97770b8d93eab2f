"""The fixed tokens of the Rosetta table, and its rows by what they are compared with."""

import dataclasses

import torch
import twin_cases

import trustclip as tc
from trustclip.constraints import rosetta
from trustclip.constraints.candidates import Candidates

Case = tuple[str, rosetta.Row]


def tokens() -> tc.TokenBatch:
    """Ragged sequences, up to some nats from old to new; one in ten has no advantage.

    The sampler is within 0.4 nats of the proximal policy, and on one token in ten up to 2 nats
    away, so that every truncation and mask of an engine acts somewhere.
    """
    batch = twin_cases.random_tokens()
    generator = torch.Generator().manual_seed(1)
    shape = batch.logp.shape
    far = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.1
    away = 4 * torch.rand(shape, generator=generator, dtype=torch.float64) - 2
    some = torch.arange(shape[0])[:, None] % 10 == 0
    # Of ten tokens the sampler's likeliest six, under three policies that are far apart.
    z = 1.5 * torch.randn(3, *shape, 10, generator=generator, dtype=torch.float64)
    new, old, rollout = (z[0], z[0] + 0.3 * z[1], z[0] + 0.5 * z[2])
    top = rollout.topk(6).indices
    each = (x.log_softmax(dim=2).gather(2, top) for x in (new, old, rollout))
    return dataclasses.replace(
        batch,
        logp_rollout=batch.given("logp_rollout") + torch.where(far, away, 0.0),
        logp_ref=(batch.logp_old + 0.4 * z[0, ..., 0]).clamp(max=-1e-3),
        advantages=torch.where(some, 0.0, batch.advantages),
        keys=torch.arange(batch.logp.numel()).view(shape),
        lag=(torch.arange(shape[0])[:, None] % 4).expand(shape),
        candidates=Candidates(*each, partial=True),
    )


def near_tokens() -> tc.TokenBatch:
    """The same, every other sequence's policies 500 times closer: verl has bounds of 1e-3."""
    batch = tokens()
    near = torch.where(torch.arange(len(batch.logp)) % 2 == 0, 2e-3, 1.0)[:, None].double()
    logp = batch.logp
    return dataclasses.replace(
        batch,
        logp_old=logp + near * (batch.logp_old - logp),
        logp_rollout=logp + near * (batch.given("logp_rollout") - logp),
    )


def is_preset(row: rosetta.Row) -> bool:
    """Whether it is a preset of verl's rollout correction."""
    return row.setting.startswith("RolloutCorrectionConfig")


def rows(checked: str, *engines: str) -> list[Case]:
    """Rows that have a method, of the engines compared with a package or a formula."""
    return [
        (name, row)
        for name, engine in rosetta.ENGINES.items()
        if engine.checked == checked and (not engines or name in engines)
        for row in engine.rows
        if row.method is not None
    ]


def method_of(engine: str, row: rosetta.Row) -> tc.Method:
    """The row's method, which drops every candidate where it would draw some at random."""
    method = tc.preset(engine, row.name)
    return dataclasses.replace(method, share=1.0) if method.name == "clip_cov" else method  # type: ignore[type-var]


def label(case: Case) -> str:
    return f"{case[0]}-{case[1].name}"
