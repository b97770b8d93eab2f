"""Fields of TRL's GRPOConfig that a recipe passes through, checked against the real class."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from trustclip.engines.trl.config import ConstrainedGRPOConfig, too_small
from trustclip.support.checked import NUMBER, Count, Positive, Share, UpToOne, Whole, explain
from trustclip.support.consent import is_allowed
from trustclip.support.names import nearest, unknown

_Decay = Annotated[float, Field(ge=0, lt=1), NUMBER]

#: What TRL and Transformers do not check before training, or not at all.
_RANGES: dict[str, Any] = {
    "adam_beta1": _Decay,
    "adam_beta2": _Decay,
    "adam_epsilon": Positive,
    "dataloader_num_workers": Whole,
    "ddp_timeout": Count,
    "max_grad_norm": Positive,
    "multi_objective_aggregation": Literal["sum_then_normalize", "normalize_then_sum"],
    "ref_model_mixup_alpha": Share,
    "ref_model_sync_steps": Count,
    "top_entropy_quantile": Share,
    "vllm_gpu_memory_utilization": UpToOne,
    "vllm_mode": Literal["colocate", "server"],
    "vllm_tensor_parallel_size": Count,
}

_SET = "is set by the run itself"
_EVALUATES = "is ignored: the recipe's section `eval` sets the evaluation"
_OTHER_LOSS = "belongs to a loss of TRL that is not used here; set it in `method`"
_SKEWS = "changes the distribution of the samples, which the ratio would not take into account"

#: Fields that a recipe does not pass on, and why: the run sets them for all its parts to agree; or
#: another value than the default would be ignored, or render the training wrong.
_REFUSED = {
    **dict.fromkeys(("output_dir", "seed", "disable_tqdm"), _SET),
    **dict.fromkeys(("reward_weights", "use_cpu"), _SET),
    **dict.fromkeys(("do_eval", "do_predict", "eval_delay", "eval_on_start"), _EVALUATES),
    **dict.fromkeys(("eval_steps", "eval_strategy", "load_best_model_at_end"), _EVALUATES),
    **dict.fromkeys(("min_p", "repetition_penalty"), _SKEWS),
    **dict.fromkeys(("sapo_temperature_neg", "sapo_temperature_pos"), _OTHER_LOSS),
    **dict.fromkeys(("vespo_k_neg", "vespo_k_pos"), _OTHER_LOSS),
    **dict.fromkeys(("vespo_lambda_neg", "vespo_lambda_pos"), _OTHER_LOSS),
    "chat_template_kwargs": "would reach training and not the evaluations: set `prompt.thinking`",
    "auto_find_batch_size": "changes the batch, and with it groups and schedule, during training",
    "do_train": "is ignored: a recipe trains",
    "label_smoothing_factor": "is ignored: it belongs to a cross-entropy",
    "local_rank": "is set by the launcher",
    "neftune_noise_alpha": "adds noise to the embeddings that the sampler does not have",
    "num_train_epochs": "is ignored: `max_steps` is the length of the training",
    "resume_from_checkpoint": "is ignored: a run continues from its own checkpoints",
    "trust_remote_code": "would run code of a model's repository",
}

#: Beginnings of fields that no result depends on.
_NEUTRAL = (
    *("accelerator_config", "activation_checkpointing", "dataloader_", "debug", "disable_tqdm"),
    *("do_", "eval_", "generation_batch_size", "gradient_checkpointing", "hub_", "include_"),
    *("log_", "logging_", "project", "push_to_hub", "report_to", "resume_from_checkpoint"),
    *("run_name", "save_", "trackio_"),
)

#: Values within ``model_init_kwargs`` with which Transformers runs a repository's kernels.
_KERNELS = re.compile(r"(allow_all|use)_kernels|kernel_config|_implementation\W+([\w|.-]+/[\w.-]+)")

#: Keys of ``generation_kwargs`` that do not change the distribution of completions.
_HARMLESS = {"cache_implementation", "disable_compile", "stop_strings", "use_cache"}


def complaints(values: Mapping[str, Any], own: Collection[str]) -> Iterator[tuple[str, str]]:
    """Invalid or unsupported fields among those to pass through, each with what is wrong.

    ``own`` are the names of the settings of a recipe's section ``rl``, which are set there.
    """
    fields = {f.name: f for f in dataclasses.fields(ConstrainedGRPOConfig) if f.init}
    hints = get_type_hints(ConstrainedGRPOConfig)
    for name, value in values.items():
        if name in own:
            yield name, f"`trl.{name}` is a setting of its own: set `{name}`, outside `trl`."
        elif _REFUSED.get(name) == _SET:
            yield name, f"`trl.{name}` {_SET}."
        elif name not in fields:
            yield name, _unknown(name, passed_through(own), own)
        elif wrong := [*_errors(hints[name], value), *_errors(_RANGES.get(name, Any), value)]:
            yield name, f"`trl.{name}` {wrong[0]}" + "." * (not wrong[0].endswith("?"))
        elif name in _REFUSED and value != fields[name].default:
            yield name, f"`trl.{name}` {_REFUSED[name]}."
        elif name == "generation_kwargs":
            yield from ((name, text) for text in _skewing_keys(value))
        elif name == "model_init_kwargs" and "trust_remote_code" in str(value):
            # A text is JSON to TRL, which loads the reference model with these.
            yield name, f"`trl.{name}`: 'trust_remote_code' {_REFUSED['trust_remote_code']}."
        elif name == "model_init_kwargs" and (kernels := _foreign_kernels(value)):
            yield name, kernels
        else:
            yield from ((name, f"`trl.{name}` {text}") for _, text in too_small({name: value}))


def passed_through(own: Collection[str]) -> set[str]:
    """Fields of TRL's config that a recipe can pass on; those it sets itself are ``own``."""
    fields = {f.name for f in dataclasses.fields(ConstrainedGRPOConfig) if f.init}
    return fields - _REFUSED.keys() - set(own)


def changes_nothing(name: str) -> bool:
    """Whether no result depends on a field of TRL's: logs, files, the hub, evaluation's own.

    Example:
      >>> changes_nothing("logging_first_step"), changes_nothing("adam_beta2")
      (True, False)
    """
    return name.startswith(_NEUTRAL)


def _unknown(name: str, fields: Collection[str], own: Collection[str]) -> str:
    """The error for an unknown field; one that the recipe sets itself may be meant."""
    if (near := nearest(name, {*fields, *own})) in own:
        return f"unknown field {name!r} of GRPOConfig; did you mean `{near}`, outside `trl`?"
    return unknown("field", name, fields, of="GRPOConfig")


def _foreign_kernels(value: Any) -> str:
    """The error for compiled code that Transformers would download; empty where it is allowed."""
    match = _KERNELS.search(str(value))
    if match is None or is_allowed(match[0]):
        return ""
    return (
        f"`trl.model_init_kwargs`: {match[2] or match[0]!r} downloads kernels from a repository, "
        "whose code then runs here: if you trust it, allow it with --allow-code."
    )


def _errors(hint: Any, value: Any) -> Iterator[str]:
    """Type errors of a value; types are strict: neither a text nor a bool is a number."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"should be a finite number, got {value}"
        return
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        yield explain(error)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return  # a third-party type that pydantic cannot check


def _skewing_keys(value: Any) -> Iterator[str]:
    """Errors for keys of ``generation_kwargs`` that change the sampling distribution."""
    if not isinstance(value, Mapping):
        yield f"`trl.generation_kwargs` should be a mapping, got {value!r}."
        return
    for key in value:
        if key not in _HARMLESS:
            yield f"`trl.generation_kwargs`: {key!r} {_SKEWS}."
