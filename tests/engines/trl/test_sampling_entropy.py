"""The entropy over all completions of a generation, from what they were drawn with."""

from statistics import fmean

import pytest
import torch
import trl_runs
from trl_runs import constrained

from trustclip.engines.trl.recording.records import surprisal


@pytest.mark.parametrize("decoder", ["auto", "transformers"])
def test_it_is_the_exact_entropy_within_its_error(tmp_path, decoder) -> None:
    """A policy that stands still, every completion scored: TRL's exact entropies beside it."""
    settings = {"learning_rate": 0.0, "num_iterations": 2, "max_steps": 8, "decoder": decoder}
    run = constrained(tmp_path, "atr", **settings)
    exact = run.column("trustclip/entropy")[::2]  # two updates of each generation
    found, errors = (run.column(f"trustclip/sampling_entropy{e}") for e in ("", "_error"))
    assert len(found) == len(errors) == len(exact) == 4
    for a, b, error in zip(found, exact, errors, strict=True):
        assert 0 < error < 0.3
        assert abs(a - b) < 5 * error
    assert fmean(found) == pytest.approx(fmean(exact), abs=3 * fmean(errors) / 2)


def test_it_is_of_all_completions_also_where_none_has_an_advantage(tmp_path, monkeypatch) -> None:
    def all_alike(completions, **_):
        return [0.0] * len(completions)

    monkeypatch.setattr(trl_runs, "share_of_even_digits", all_alike)
    run = constrained(tmp_path, "atr", num_iterations=2, max_steps=4)
    assert min(run.column("trustclip/skipped")) > 0.9 and not run.column("trustclip/entropy")
    found = run.column("trustclip/sampling_entropy")
    assert len(found) == 2  # one of each generation
    assert found[0] == pytest.approx(found[1], rel=0.5) and found[0] > 0.5


def test_the_error_is_that_between_problems() -> None:
    torch.manual_seed(0)
    means = []
    for _ in range(400):
        level = torch.rand(8, 1).expand(8, 4).flatten()  # a problem's completions are alike
        tokens = torch.randint(5, 20, (32,)).float()
        means.append(surprisal(torch.stack([level * tokens, tokens], dim=1), 4))
    spread = torch.tensor([mean for mean, _ in means]).std().item()
    assert fmean(error or 0 for _, error in means) == pytest.approx(spread, rel=0.15)
    assert surprisal(torch.zeros(4, 2), 4) == (None, None)
    assert surprisal(torch.ones(4, 2), 4) == (1.0, None)
