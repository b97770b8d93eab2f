"""Further tokens beside the sampled one: values and gradients of dense log-softmaxes."""

import pytest
import torch

from trustclip.head import Head, score
from trustclip.head.topk import further_logps

HEADS = {
    "plain": {},
    "bias and temperature": {"bias": True, "temperature": 0.7},
    "scaled": {"scale": 0.25},
    "capped": {"softcap": 3.0, "temperature": 1.3},
}


@pytest.mark.parametrize("k", [None, 1, 5])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("settings", HEADS.values(), ids=HEADS)
def test_values_and_gradients_are_those_of_a_dense_softmax(settings, frozen, k):
    g = torch.Generator().manual_seed(2)
    n, v, h = 7, 23, 6
    hidden = torch.randn(n, h, generator=g, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(v, h, generator=g, dtype=torch.float64, requires_grad=not frozen)
    given = dict(settings)
    bias = torch.randn(v, generator=g, dtype=torch.float64) if given.pop("bias", False) else None
    if bias is not None:
        bias.requires_grad_(not frozen)
    ids = torch.randint(v, (n,), generator=g)
    ids[[1, 4]] = -100
    further = None if k is None else torch.randint(v, (n, k), generator=g, dtype=torch.int32)
    head = Head.of(weight, bias, **given)
    logp = score(hidden, head, ids, entropy=False).logp
    found = further_logps(hidden, head, ids, logp, further)

    scale, temperature = given.get("scale", 1.0), given.get("temperature", 1.0)
    z = scale * (hidden @ weight.T + (0 if bias is None else bias))
    if cap := given.get("softcap"):
        z = cap * (z / cap).tanh()
    dense = (z / temperature).log_softmax(dim=1)
    want = dense if further is None else dense.gather(1, further.long())
    want = want * (ids >= 0)[:, None]
    torch.testing.assert_close(found, want)
    coefficients = torch.randn(want.shape, generator=g, dtype=torch.float64)
    inputs = [x for x in (hidden, weight, bias) if x is not None and x.requires_grad]
    got = torch.autograd.grad((found * coefficients).sum(), inputs)
    for a, b in zip(got, torch.autograd.grad((want * coefficients).sum(), inputs), strict=True):
        torch.testing.assert_close(a, b)
