"""Completions from vLLM in this process: the only module that imports it."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
#: A line of a log that names an exception: its class and its message.
_ERROR = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (\S.*)")
#: What vLLM raises over another error, which it has printed before.
_ABOVE = re.compile(r"Engine core|EngineDead|EngineCore encountered|See root cause|failed to start")


@dataclass(frozen=True)
class Engine:
    """How an engine is built."""

    #: Of vLLM's ``EngineArgs``, by name, with hyphens or underscores.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: A file for what vLLM prints; None leaves that on the terminal.
    log: Path | None = None


DEFAULT = Engine()


class VLLM:
    """A model in vLLM. Prompts of one batch run together: a large ``batch_size`` pays.

    Raises:
      ValueError: vLLM is not installed or refuses an argument, or the engine fails, with vLLM's
        last error.

    References:
      https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm.html
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        style: str | PromptStyle,
        seed: int,
        engine: Engine = DEFAULT,
    ) -> None:
        vllm = _package()
        self._params: Any = vllm.SamplingParams
        self._log = engine.log
        arguments = _parse(vllm, engine.arguments)
        with _reporting(self._log):
            self._llm: Any = vllm.LLM(model=model, seed=seed, **arguments)
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
        with _reporting(self._log):
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
        with _reporting(self._log):
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
    """What vLLM, or an evaluation, refuses of an engine's arguments; nothing is loaded.

    Raises:
      ValueError: vLLM is not installed.
    """
    try:
        _parse(_package(), arguments)
    except ValueError as error:
        yield one_line(str(error))


def _package() -> Any:
    try:
        import vllm as package  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(f"vLLM cannot be used: {error}; pip install 'trustclip[vllm]'.") from None
    return package  # a type checker finds this file under the name of the package


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
            raise ValueError(f"`vllm`: {unknown('argument of vLLM', name, allowed)}")
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
def _reporting(log: Path | None) -> Iterator[None]:
    """Send what this process and its children print to a file; one sentence where vLLM fails."""
    start = log.stat().st_size if log and log.exists() else 0
    with _printing_to(log):
        try:
            yield
        except Exception as error:
            failure = error
        else:
            return
    text = log.read_bytes()[start:].decode(errors="replace") if log else ""
    raise ValueError(_explain(failure, text) + (f" Full log: {log}." if log else "")) from failure


@contextlib.contextmanager
def _printing_to(log: Path | None) -> Iterator[None]:
    if log is None:
        yield
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    copies = [(number, os.dup(number)) for number in (1, 2)]
    with log.open("ab") as file:
        for number, _ in copies:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        for number, copy in copies:
            os.dup2(copy, number)
            os.close(copy)


def _explain(failure: Exception, log: str) -> str:
    """vLLM's last error as a sentence, and what helps against it.

    Example:
      >>> _explain(RuntimeError("Engine core initialization failed. See root cause above."),
      ...          "(EngineCore) ERROR [core.py:9] torch.OutOfMemoryError: CUDA out of memory.")
      'vLLM failed: OutOfMemoryError: CUDA out of memory. Less memory: --vllm.max-model-len, \
--vllm.gpu-memory-utilization, --vllm.tensor-parallel-size, --vllm.enforce-eager true.'
    """
    text = f"{type(failure).__name__}: {failure}"
    if _ABOVE.search(text):
        errors = [(kind.rpartition(".")[2], words) for kind, words in _ERROR.findall(log)]
        causes = [f"{kind}: {words}" for kind, words in errors if not _ABOVE.search(words + kind)]
        text = causes[-1] if causes else f"its engine died without an error (killed?). {failure}"
    text = one_line(text).rstrip(".")
    memory = re.search(r"memory|killed|KV cache|max_model_len|max seq len", text, re.IGNORECASE)
    names = ("max-model-len", "gpu-memory-utilization", "tensor-parallel-size")
    helps = ", ".join(f"--vllm.{name}" for name in names)
    more = f" Less memory: {helps}, --vllm.enforce-eager true." if memory else ""
    return f"vLLM failed: {text}.{more}"
