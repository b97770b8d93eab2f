"""The entropy of the old policy, from TRL's passes."""

import pytest
import torch
from trl_runs import constrained, needs

from trustclip.engines.trl import ConstrainedGRPOTrainer

NARROW = {"low": 1e-2, "high": 1e-2, "inner": "importance_sampling"}


@needs("trl>=1.15")
@pytest.mark.parametrize(
    ("decoder", "head"), [("transformers", "trl"), ("auto", "trl"), ("auto", "trustclip")]
)
def test_the_old_entropy_is_that_of_the_policy_before_the_updates(
    tmp_path, monkeypatch, decoder, head
):
    """By the logits of a dense softmax; and it stays while the policy moves."""
    seen, dense = [], []
    kept = ConstrainedGRPOTrainer._constrain

    def spy(self, inputs, *scored):
        made = kept(self, inputs, *scored)
        batch, surrogate, *_ = made
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            z = self.model(input_ids=ids, attention_mask=mask).logits / 0.7
        logp = z[:, -batch.mask.shape[1] - 1 : -1].double().log_softmax(-1)
        order = inputs["sample_index"].argsort()
        entropy = -(logp.exp() * logp).sum(-1)
        dense.append(torch.where(batch.mask, entropy, 0.0)[order])
        seen.append((batch.given("entropy_old")[order], surrogate.kept[order], batch.mask[order]))
        return made

    monkeypatch.setattr(ConstrainedGRPOTrainer, "_constrain", spy)
    run = constrained(
        tmp_path, "erc", NARROW, head=head, decoder=decoder, max_steps=6, num_iterations=3,
        temperature=0.7, learning_rate=1e-2, skip_zero_advantage=False,
    )  # fmt: skip
    gated = run.column("trustclip/gated")
    for first in (0, 3):
        for update in range(first, first + 3):
            old, now, (_, kept_tokens, mask) = seen[update][0], dense[update], seen[update]
            torch.testing.assert_close(old.double(), dense[first], rtol=0, atol=2e-5)
            cut = mask & ~kept_tokens
            assert cut.any() == (update > first)
            ratio = now[mask] / dense[first][mask]
            clear = ((ratio - 1).abs() - 1e-2).abs() > 1e-4
            assert torch.equal(kept_tokens[mask][clear], ((ratio - 1).abs() < 1e-2)[clear])
        assert gated[first] == 0 < gated[first + 1]
