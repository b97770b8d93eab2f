"""The loss head: from hidden states to log-probabilities and divergences, logits never whole."""

from trustclip.head.exact import ORDERS as ORDERS
from trustclip.head.exact import Order as Order
from trustclip.head.exact import bregman_kl as bregman_kl
from trustclip.head.exact import exact_kl as exact_kl
from trustclip.head.logprobs import Scores as Scores
from trustclip.head.logprobs import score as score
from trustclip.head.logprobs import selected_logprobs as selected_logprobs
from trustclip.head.product import Head as Head
from trustclip.head.topk import topk as topk
