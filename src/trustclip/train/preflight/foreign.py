"""A server's log-probabilities against those of a model in this process, on fresh completions."""

from typing import Any

import torch

from trustclip.constraints.sampler import Pairs
from trustclip.engines.served import ServedSampler
from trustclip.engines.trl.scoring.floor import with_floor
from trustclip.train.evaluation.backends.local import Conversation, derived_seed, prompt_ids
from trustclip.train.models import load_model, load_tokenizer
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
    before = prompt_ids(load_tokenizer(model, style), prompts)
    sampler = ServedSampler(url, LONGEST, drawn={"temperature": 1.0, "top_p": 1.0}, name=served)
    completions = sampler.complete(before, [derived_seed(0, i) for i in range(len(prompts))])
    network, _ = load_model(model, style)
    network.eval()
    names = ("trainer", "sampler", "entropy", "position", "token", "completion")
    values: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    sequences = []
    for number, (prompt, ids, logps) in enumerate(zip(before, *completions, strict=True)):
        start = len(prompt)
        tokens = torch.tensor(ids)
        whole = torch.tensor([[*prompt, *ids]], device=network.device)
        if not ids or int(whole.max()) >= network.get_input_embeddings().weight.shape[0]:
            raise ValueError(f"the server's model has other tokens than {model!r}: ids {tokens}.")
        with torch.inference_mode():
            logits = network(whole).logits[0, start - 1 : -1].double().cpu()  # [tokens, V]
        logp = logits.log_softmax(-1)
        values["trainer"].append(logp.gather(-1, tokens[:, None])[:, 0])
        values["sampler"].append(torch.tensor(logps).double())
        values["entropy"].append(-(logp.exp() * logp).sum(-1))
        values["position"].append(torch.arange(len(tokens)))
        values["token"].append(tokens)
        values["completion"].append(torch.full_like(tokens, number))
        sequences.append((prompt, ids))
    columns: dict[str, Any] = {name: torch.cat(parts) for name, parts in values.items()}
    pairs = Pairs(sequences=sequences, **columns)
    return with_floor(pairs, network)
