"""Sampler against trainer before a run: a recipe's first completions, or a server's own."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trustclip.constraints.sampler import Pairs
from trustclip.engines.served import complete
from trustclip.engines.trl.recording.records import Recorder
from trustclip.engines.trl.scoring.floor import with_floor
from trustclip.train.data import short_enough, training_problems
from trustclip.train.evaluation.backends.local import Conversation, derived_seed, prompt_ids
from trustclip.train.models import load_model, load_tokenizer
from trustclip.train.preflight.longest import model_shape, trial
from trustclip.train.problems.prompts import PromptStyle
from trustclip.train.settings.stages import Recipe

#: Maximum number of tokens of a completion.
LONGEST = 64


class _StopTraining(Exception):
    """Ends the training once the first completions are scored."""


def first_completions(recipe: Recipe) -> Pairs:
    """Sample the first update's completions as the recipe would, and score them; nothing is saved.

    Fine-tuning is left out, so that ``model`` is the one compared.

    Raises:
      ValueError: data or a model that cannot be used, or a sampler without log-probabilities.
    """
    first: list[Pairs] = []

    def stop(pairs: Pairs) -> None:
        first.append(pairs)
        raise _StopTraining

    problems = training_problems(recipe.rl, None, recipe.seed)
    tokenizer = model_shape(recipe.model, recipe.rl.style)[1]
    problems = short_enough(problems, tokenizer, recipe.rl)
    once = replace(recipe, rl=replace(recipe.rl, max_steps=1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trial(once, problems, Path(folder))
        trainer.recorder, trainer.mismatch.listener = _NullRecorder(), stop
        try:
            trainer.train()
        except _StopTraining:
            model = trainer.accelerator.unwrap_model(trainer.model)
            return with_floor(first[0], model, trainer.temperature)
    raise ValueError(
        "this recipe's sampler reports no log-probabilities to compare with; vLLM (use_vllm), "
        "continuous batching and trustclip's own decoder do."
    )


class _NullRecorder(Recorder):
    """A recorder that keeps nothing; with one, the trainer looks at single tokens."""


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
    seeds = [derived_seed(0, i) for i in range(len(prompts))]
    completions = complete(url, before, seeds, LONGEST, served)
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
