"""Completions from vLLM in this process: the only module that imports it."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from trustclip.support.names import unknown
from trustclip.support.text import one_line
from trustclip.train.evaluation.backends.local import (
    Completion,
    Conversation,
    Sampling,
    derived_seed,
    prompt_ids,
)
from trustclip.train.problems.prompts import PromptStyle, set_chat_template

#: Arguments of an engine that are settings of an evaluation already.
OWN = ("model", "seed")
#: Those that would run code of a model's repository, or import what they name.
CODE = {
    *("trust_remote_code", "worker_cls", "worker_extension_cls", "scheduler_cls"),
    *("logits_processors", "io_processor_plugin", "reasoning_parser_plugin"),
    *("kv_transfer_config", "ec_transfer_config", "pooler_config", "stat_loggers"),
}


class VLLM:
    """A model in vLLM. Prompts of one batch run together: a large ``batch_size`` pays.

    ``arguments`` are those of vLLM's ``EngineArgs``, by name, with hyphens or underscores.

    Raises:
      ValueError: vLLM refuses an argument, or the engine fails.

    References:
      https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm.html
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        style: str | PromptStyle,
        seed: int,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        import vllm  # pyright: ignore[reportMissingImports]

        self._params: Any = vllm.SamplingParams
        parsed = _parse(vllm, arguments or {})
        with _one_sentence():
            self._llm: Any = vllm.LLM(model=model, seed=seed, **parsed)
        self._sampling = sampling
        tokenizer = self._llm.get_tokenizer()
        set_chat_template(tokenizer, style)
        self._template = tokenizer.chat_template

    @property
    def facts(self) -> dict[str, Any]:
        """What its samples depend on besides the model: precision, compilation, sizes."""
        config = self._llm.llm_engine.vllm_config
        return {
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "enforce_eager": config.model_config.enforce_eager,
            "compilation": _name(config.compilation_config.mode),
            "cudagraphs": _name(config.compilation_config.cudagraph_mode),
            "max_model_len": config.model_config.max_model_len,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        }

    def close(self) -> None:
        """End the engine's processes, which would otherwise be killed at exit, with warnings."""
        self._llm.llm_engine.engine_core.shutdown()

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt, all at once; see `Backend`."""
        # vLLM refuses several samples at temperature 0: they would be the same.
        draws = 1 if self._sampling.temperature == 0 else n
        params = [
            self._params(
                n=draws,
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
                top_k=-1,
                max_tokens=self._sampling.max_tokens,
                seed=derived_seed(seed, number),
                skip_special_tokens=True,
            )
            for number in range(len(prompts))
        ]
        with _one_sentence():
            replies = self._llm.chat(
                list(prompts), params, chat_template=self._template, use_tqdm=False
            )
        groups = [
            [Completion(o.text, len(o.token_ids), o.finish_reason == "length") for o in r.outputs]
            for r in replies
        ]
        return [group * (n // draws) for group in groups]


class TrainingVLLM:
    """The vLLM engine of a training run, used for its evaluations.

    Its samples depend on how many it has drawn before, not on a seed: TRL draws them by one
    generator for all.
    """

    def __init__(self, generation: Any, tokenizer: Any, sampling: Sampling) -> None:
        self._generation, self._tokenizer, self._sampling = generation, tokenizer, sampling
        generation.sync_weights()

    def generate(
        self, prompts: Sequence[Conversation], n: int, seed: int
    ) -> list[list[Completion]]:
        """``n`` completions of each prompt, all at once; see `Backend`."""
        ours = {
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "max_completion_length": self._sampling.max_tokens,
        }
        theirs = {name: getattr(self._generation, name) for name in ours}
        vars(self._generation).update(ours)
        try:
            _, token_ids, *_ = self._generation.generate(
                prompt_ids(self._tokenizer, prompts, n), None, n
            )
        finally:
            vars(self._generation).update(theirs)
        flat = [self._completion(list(tokens)) for tokens in token_ids]
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    def _completion(self, tokens: list[int]) -> Completion:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        ended = bool(tokens) and tokens[-1] == self._tokenizer.eos_token_id
        return Completion(text, len(tokens), truncated=not ended)


def complaints(arguments: Mapping[str, Any]) -> Iterator[str]:
    """What vLLM, or an evaluation, refuses of an engine's arguments; nothing is loaded."""
    import vllm  # pyright: ignore[reportMissingImports]

    try:
        _parse(vllm, arguments)
    except ValueError as error:
        yield one_line(str(error))


def _parse(vllm: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as vLLM's own command line reads them."""
    if not arguments:
        return {}
    from vllm.utils.argparse_utils import (  # pyright: ignore[reportMissingImports]
        FlexibleArgumentParser,
    )

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ValueError(f"`vllm`: {message.removeprefix('argument ')}.")

    parser = vllm.EngineArgs.add_cli_args(Parser(add_help=False))
    actions = {action.dest: action for action in parser._actions}
    words: list[str] = []
    values = {str(name).replace("-", "_"): value for name, value in arguments.items()}
    for name, value in values.items():
        option = name.replace("_", "-")
        if name in OWN:
            raise ValueError(f"`vllm.{option}` is `{name}` of the evaluation: set it there.")
        if name in CODE:
            raise ValueError(f"`vllm.{option}` could run code that comes with a model or a file.")
        if name not in actions:
            allowed = [other for other in actions if other not in (*OWN, *CODE)]
            raise ValueError(f"`vllm`: {unknown('argument', name, allowed, of='vLLM')}")
        words += _words(option, value)
    # It looks the model up: this folder exists, so that no hub is queried.
    parsed = vllm.EngineArgs.from_cli_args(parser.parse_args([*words, "--model", "."]))
    return {name: getattr(parsed, name) for name in values}


def _words(name: str, value: Any) -> list[str]:
    """An argument as on vLLM's command line."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    values = value if isinstance(value, list | tuple) else [value]
    return [f"--{name}", *map(str, values)]


def _name(value: Any) -> str:
    return str(getattr(value, "name", value)).lower()


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """What vLLM raises, as a ValueError; its processes have printed the cause before."""
    try:
        yield
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {error}").rstrip(".")
        raise ValueError(
            f"vLLM failed, for the reason that it printed above: {text}. If it ran out of memory, "
            "lower --vllm.max-model-len or --vllm.gpu-memory-utilization, or set "
            "--vllm.tensor-parallel-size or --vllm.enforce-eager true."
        ) from error
