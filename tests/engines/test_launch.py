"""Launch files name what exists, and the doctor says what a launcher would not."""

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import trustclip as tc
from trustclip.train.preflight.ranks import World, describe
from trustclip.train.preflight.ranks import errors as errors_of
from trustclip.train.settings.stages import RLStage

LAUNCH = Path(__file__).parents[2] / "recipes" / "launch"
SHARDS = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


def stage(batch=8, schedule=(4, 2, 4), **changes) -> RLStage:
    steps, passes, update = schedule
    return RLStage(
        dataset="arithmetic", per_device_train_batch_size=batch, num_generations=8,
        steps_per_generation=steps, num_iterations=passes, gradient_accumulation_steps=update,
        **{"save_steps": 0, **changes},
    )  # fmt: skip


def errors(world: World, **changes) -> list[str]:
    return [*errors_of(world, stage(**changes))]


CPUS = World(["a cpu", "a cpu"], "gloo", "DistributedDataParallel")
GPUS = World(["a cuda:0", "a cuda:1"], "nccl", "DistributedDataParallel", 2)


# -- the doctor ------------------------------------------------------------------------------------


def test_the_doctor_of_a_launcher_names_missing_packages(monkeypatch, tmp_path, capsys):
    from trustclip.cli.commands.machine import doctor

    importlib.import_module("trustclip.engines.trl.upstream")  # TRL looks for wandb just then
    monkeypatch.setitem(sys.modules, "wandb", None)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: a\noutput_dir: run\nmodel: tiny\nrl: {dataset: arithmetic, report_to: wandb}\n"
    )
    assert doctor(["--distributed", str(recipe)]) == 1
    shown = capsys.readouterr().out
    assert "error: `report_to` 'wandb'" in shown and "pip install wandb" in shown
    assert "1 error\n" in shown
    # Options over the file.
    assert doctor(["--distributed", str(recipe), "--rl.report_to", "none"]) == 0
    with pytest.raises(ValueError, match="would be inert"):
        doctor(["--distributed", "--num-iterations", "1"])


@pytest.mark.parametrize("world", [CPUS, GPUS, World(["a cpu"])])
def test_nothing_is_wrong_with_what_was_asked_for(world):
    assert errors(world) == []


@pytest.mark.parametrize(
    ("world", "changes", "words"),
    [
        (World(["a cpu"], asked_ranks=2), {}, "2 ranks were asked for and 1 joined"),
        (
            dataclasses.replace(CPUS, asked_wrapper="FSDP"),
            {},
            "FSDP was asked for and the model would be in DistributedDataParallel:",
        ),
        (
            dataclasses.replace(GPUS, asked_wrapper="DeepSpeed"),
            {},
            "DeepSpeed was asked for and the model would be in DistributedDataParallel:",
        ),
        (dataclasses.replace(GPUS, devices=["a cuda:0"] * 2), {}, "2 ranks share a cuda:0"),
        (CPUS, {"schedule": (3, 1, 2)}, "neither divides the other"),
        (dataclasses.replace(GPUS, wrapper="FSDP1"), {"save_steps": 5}, "under FSDP1"),
    ],
)
def test_what_would_be_silent_is_one_error(world, changes, words):
    (text,) = errors(world, **changes)
    assert words in text


def test_two_hosts_may_name_their_devices_alike():
    assert errors(World(["a cuda:0", "b cuda:0"], "nccl", "DistributedDataParallel")) == []


def test_the_effective_batch_counts_every_rank():
    told = dict(describe(GPUS, stage()))
    assert told["ranks"] == "2 (nccl)" and told["rank 1"] == "a cuda:1"
    assert told["an update"] == "64 completions of all ranks"
    assert told["a generation"] == "64 completions of 8 prompts"


# -- launch files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), SHARDS.items())
def test_accelerate_reads_its_files(name, kind):
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

    config = load_config_from_file(str(LAUNCH / f"{name}.yaml"))
    assert isinstance(config, ClusterConfig)
    assert (config.distributed_type, config.num_processes, config.mixed_precision) == (
        kind,
        8,
        "bf16",
    )
    if name == "fsdp2":
        assert config.fsdp_config is not None and config.fsdp_config["fsdp_version"] == 2
    if kind == "DEEPSPEED":
        assert config.deepspeed_config is not None
        assert config.deepspeed_config["zero_stage"] == int(name[-1])


def fields_of(*classes: type) -> set[str]:
    return {field.name for cls in classes for field in dataclasses.fields(cls) if field.init}


def test_settings_of_the_script_exist():
    from trustclip.engines.trl import ConstrainedGRPOConfig

    settings = yaml.safe_load((LAUNCH / "atr.yaml").read_text())
    task = {"model", "dataset", "prompt_style"}
    own = {name: value for name, value in settings.items() if name not in task}
    assert own.keys() <= fields_of(ConstrainedGRPOConfig)
    args = ConstrainedGRPOConfig(**{**own, "bf16": False, "use_cpu": True})
    assert args.constraint() == tc.method("atr", delta=0.07)
    assert args.schedule().updates_per_generation == 4


@pytest.mark.parametrize(
    ("ranks", "steps", "update"), [(8, 4, 2), (6, 4, 2), (16, 2, 1)], ids=["8", "6", "2x8"]
)
def test_batches_of_the_launch_files_divide(ranks, steps, update):
    world = World([f"a cuda:{i}" for i in range(ranks)], "nccl", "FSDP2", ranks, "FSDP")
    assert errors(world, schedule=(steps, 2, update), use_vllm=True) == []


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash_and_their_flags_exist(path):
    from accelerate.commands.launch import launch_command_parser

    from trustclip.engines.trl import ConstrainedGRPOConfig

    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.stat().st_mode & 0o111
    text = path.read_text()
    assert "not tested on GPUs" in text.replace("Not", "not").replace("\n# ", " ")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    options = [a for action in launch_command_parser()._actions for a in action.option_strings]
    known = {option.lstrip("-").replace("-", "_") for option in options}
    known |= fields_of(ConstrainedGRPOConfig, RLStage)
    known |= {"model", "dataset", "config", "distributed", "port"}
    known |= {"standalone", "nproc_per_node", "shutdown_timeout"}  # torchrun's
    code = re.sub(r"vllm serve (?:.*\\\n)*.*&\n", "", code)  # tests/real knows vLLM's flags
    for flag in re.findall(r"(?<=\s)--([a-zA-Z_.-]+)", code):
        section, _, name = flag.rpartition(".")
        assert section in ("", "rl", "trl")
        assert name.replace("-", "_") in known, flag
