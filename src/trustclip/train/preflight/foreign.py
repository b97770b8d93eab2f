"""A server's log-probabilities against those of a model in this process, on fresh completions."""

from typing import Any

import torch

from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.scoring.floor import with_floor
from trustclip.support.http import first_model
from trustclip.train.evaluation.backends.local import (
    Conversation,
    Sampling,
    derived_seed,
    prompt_ids,
)
from trustclip.train.evaluation.backends.served import Served
from trustclip.train.models import load_model
from trustclip.train.problems.prompts import PromptStyle

#: Maximum number of tokens of a completion.
LONGEST = 64


def server_pairs(
    url: str, model: str, style: PromptStyle, prompts: list[Conversation], served: str = ""
) -> Pairs:
    """Ask a server for completions with log-probabilities, and score them by a model.

    Sampled at temperature 1 from the whole vocabulary, as training would: one completion of each
    prompt. ``served`` is the server's name of its model, the first that it has if empty.

    Raises:
      ValueError: a server that does not answer or returns no token ids, or no such model.
    """
    sampling = Sampling(1.0, 1.0, LONGEST)
    served = served or first_model(url)
    server = Served(url, served, sampling, 1)
    completions = [server.measured(prompt, derived_seed(0, i)) for i, prompt in enumerate(prompts)]
    network, tokenizer = load_model(model, style)
    network.eval()
    names = ("trainer", "sampler", "entropy", "position", "token", "completion")
    values: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    sequences = []
    before = prompt_ids(tokenizer, prompts)
    for number, (prompt, completion) in enumerate(zip(before, completions, strict=True)):
        start = len(prompt)
        tokens = torch.tensor([token for token, _ in completion])
        whole = torch.tensor([[*prompt, *tokens.tolist()]], device=network.device)
        if not len(tokens) or int(whole.max()) >= network.get_input_embeddings().weight.shape[0]:
            raise ValueError(f"the server's model has other tokens than {model!r}: ids {tokens}.")
        with torch.inference_mode():
            logits = network(whole).logits[0, start - 1 : -1].double().cpu()  # [tokens, V]
        logp = logits.log_softmax(-1)
        values["trainer"].append(logp.gather(-1, tokens[:, None])[:, 0])
        values["sampler"].append(torch.tensor([logprob for _, logprob in completion]).double())
        values["entropy"].append(-(logp.exp() * logp).sum(-1))
        values["position"].append(torch.arange(len(tokens)))
        values["token"].append(tokens)
        values["completion"].append(torch.full_like(tokens, number))
        sequences.append((whole[0, :start].tolist(), tokens.tolist()))
    columns: dict[str, Any] = {name: torch.cat(parts) for name, parts in values.items()}
    pairs = Pairs(sequences=sequences, **columns)
    return with_floor(pairs, network)
