"""What certified skipping leaves out of the head's gradients, and what it saves.

``python lab/benchmarks/head_skip.py [--run RUNS/TINY] [--tokens 1024] [--repeats 5]`` prints three
tables: blocks that stay, seconds in turn, and the error next to its bound. Rows are made at the
entropies of a published run: of Qwen3-8B's tokens on competition problems about half are below 0.01
nats and a fifth above 0.672 (Wang et al., 2025, arXiv 2506.01939). With ``--run`` also those of a
model that was trained here, on the completions that it wrote.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trustclip import head
from trustclip.head import Head, error_bounds, product
from trustclip.head.skipped import lightest
from trustclip.tasks.prompts import messages
from trustclip_lab.bench.measure import in_turn
from trustclip_lab.bench.table import Table
from trustclip_lab.bench.variants import Problem, Shape, ours, products, with_method

VOCABULARY, WIDTH = 151_936, 256
SKIPS = (1e-5, 1e-4, 1e-3, 1e-2)


def entropies(count: int) -> Tensor:
    """Nats: half of them from 1e-6 to 0.01, a fifth from 0.672 to 3. Shape [count]."""
    at = (torch.arange(count).double() + 0.5) / count
    knots = torch.tensor([1e-6, 1e-2, 0.672, 3.0]).double().log()
    places = torch.tensor([0, 0.5, 0.8, 1.0]).double()
    left = torch.bucketize(at, places[1:-1], right=True)
    within = (at - places[left]) / (places[left + 1] - places[left])
    return torch.lerp(knots[left], knots[left + 1], within).exp()


def solved(
    entropy_at: Callable[[Tensor], Tensor], wanted: Tensor, low: float, high: float
) -> Tensor:
    """Where a falling function of each row is what is wanted, by halving."""
    a, b = torch.full_like(wanted, low), torch.full_like(wanted, high)
    for _ in range(30):
        middle = (a + b) / 2
        above = entropy_at(middle) > wanted
        a, b = torch.where(above, middle, a), torch.where(above, b, middle)
    return (a + b) / 2


def entropy_of(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp).sum(dim=-1)


def power_laws(count: int) -> tuple[Tensor, Tensor]:
    """Mass of each block where probabilities fall as powers of their rank, at random places.

    Returns:
      (share, own): [blocks, count], and the block of a token that was drawn. Shape [count].
    """
    ranks = (torch.arange(VOCABULARY).double() + 1).log()
    g = torch.Generator().manual_seed(0)
    blocks = -(-VOCABULARY // product.NARROW["cpu"])
    shares, owns = [], []
    for wanted in entropies(count):

        def of(power: Tensor) -> Tensor:
            return entropy_of((-power * ranks).log_softmax(0))

        p = (-solved(of, wanted, 1.0, 60.0) * ranks).softmax(0)
        places = torch.randperm(VOCABULARY, generator=g) // product.NARROW["cpu"]
        shares.append(torch.zeros(blocks).double().index_add_(0, places, p))
        owns.append(places[torch.multinomial(p, 1, generator=g)])
    return torch.stack(shares, dim=1), torch.cat(owns)


def at_entropies(problem: Problem) -> Problem:
    """A problem of random weights whose rows have these entropies."""
    wanted, scaled = entropies(len(problem.ids)), []
    order = torch.randperm(len(wanted), generator=torch.Generator().manual_seed(1))
    hidden, weight = problem.hidden.detach(), problem.weight.detach()
    for rows, target in zip(hidden.split(64), wanted[order].split(64), strict=True):
        z = rows @ weight.T

        def of(scale: Tensor, z: Tensor = z) -> Tensor:
            return entropy_of((z * scale[:, None].float()).log_softmax(1)).double()

        scaled.append(rows * solved(of, target, 0.05, 20.0)[:, None].float())
    return replace(problem, hidden=torch.cat(scaled).requires_grad_())


def shares_of(hidden: Tensor, weight: Tensor, ids: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Mass of each block of some columns, and the blocks of the tokens."""
    found = []
    for rows in hidden.split(64):
        p = (rows @ weight.T).softmax(1)
        found.append(torch.stack([part.sum(1) for part in p.split(width, dim=1)]))
    return torch.cat(found, dim=1), ids // width


def of_run(run: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight and tokens of the completions that a run's model wrote last."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(run / "final").eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(run / "final")
    problems = {each["id"]: each["problem"] for each in _lines(run / "problems.jsonl")}
    samples = [each for each in _lines(run / "samples.jsonl") if each["stage"] == "rl"]
    states, ids = [], []
    for sample in samples[-256:]:
        asked = messages(problems[sample["id"]], "plain")
        text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        before = tokenizer(text, add_special_tokens=False)["input_ids"]
        after = tokenizer(sample["response"], add_special_tokens=False)["input_ids"]
        after = [*after, tokenizer.eos_token_id]
        out = model.model(torch.tensor([before + after])).last_hidden_state[0, :-1]
        states.append(out[-len(after) :])
        ids += after
    return torch.cat(states), model.get_output_embeddings().weight, torch.tensor(ids)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def what_stays(kinds: dict[str, tuple[Tensor, Tensor]]) -> Table:
    rows = []
    for name, (share, own) in kinds.items():
        for skip in SKIPS:
            kept, dropped = lightest(share, own, skip)
            rows.append((
                name, skip, kept.double().mean().item(), dropped.mean().item(),
                dropped.max().item(), 1 + kept.double().mean().item(),
                1 + 2 * kept.double().mean().item(),
            ))  # fmt: skip
    columns = (
        "rows", "skip", "blocks that stay", "mean mass left out", "largest", "products, frozen",
        "products, trained",
    )  # fmt: skip
    return Table("Blocks that stay", columns, rows, ["Of 2 products, frozen, and 3, trained."])


def seconds(problem: Problem, trained: bool, repeats: int) -> Table:
    kind = "trained" if trained else "frozen"
    weight = problem.weight.detach().requires_grad_(trained)
    given = replace(problem, weight=weight, entropy=False)
    made = with_method if trained else ours
    calls = {"bare products": products(given), "whole": made(given)}
    calls |= {f"skip = {skip:g}": made(replace(given, skip=skip)) for skip in SKIPS[1:]}
    taken = in_turn(calls, repeats)
    rows = [(name, t, t / taken["whole"]) for name, t in taken.items()]
    return Table(f"CPU seconds, {kind}", ("variant", "seconds", "x whole"), rows, [])


def errors(problem: Problem) -> Table:
    """In float64, where next to nothing is rounding."""
    rows, whole = [], None
    coefficients = problem.coefficients.double()
    for skip in (0.0, *SKIPS):
        hidden = problem.hidden.detach().double().requires_grad_()
        weight = problem.weight.detach().double().requires_grad_()
        of = Head(weight, skip=skip)
        scores = head.score(hidden, of, problem.ids, entropy=False)
        (scores.logp @ coefficients).backward()
        assert hidden.grad is not None and weight.grad is not None
        whole = whole or (hidden.grad, weight.grad)
        if scores.dropped is None:
            continue
        bounds = error_bounds(of, hidden.detach(), coefficients, scores.dropped)
        for name, bound, got, want in zip(
            "hW", bounds, (hidden.grad, weight.grad), whole, strict=False
        ):
            gap, moved = (got - want).norm(dim=1), scores.dropped > 1e-12
            share = (gap[moved] / bound[moved]).max() if name == "h" else gap.sum() / bound
            rows.append((skip, name, share.item(), ((got - want).norm() / want.norm()).item()))
    columns = ("skip", "gradient of", "error / bound", "error / gradient")
    return Table("Errors", columns, rows, ["Of h the worst row; of W the sum over its rows."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    problem = at_entropies(Problem.of(Shape(given.tokens, WIDTH, VOCABULARY), trained=False))
    with torch.no_grad():
        h, w = problem.hidden.detach(), problem.weight.detach()
        kinds = {
            "powers of the rank, places at random": power_laws(min(given.tokens, 64)),
            "random weights": shares_of(h, w, problem.ids, product.NARROW["cpu"]),
        }
        if given.run is not None:
            h, w, ids = of_run(given.run)
            name = f"{given.run.name}, V = {len(w)}, blocks of 16"
            kinds[name] = shares_of(h, w, ids, 16)
        tables = [what_stays(kinds)]
    first = replace(
        problem,
        hidden=problem.hidden.detach()[:128],
        ids=problem.ids[:128],
        coefficients=problem.coefficients[:128],
    )
    made = partial(seconds, problem, repeats=given.repeats)
    tables += [made(trained=False), made(trained=True), errors(first)]
    for table in tables:
        print(table.markdown(), end="\n\n")


if __name__ == "__main__":
    main()
