"""The loss head: from hidden states to log-probabilities and divergences, logits never whole."""

from trustclip.head.exact import exact_kl as exact_kl

__all__ = ["exact_kl"]
