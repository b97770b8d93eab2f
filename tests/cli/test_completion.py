"""The scripts with which shells complete the program, in those shells."""

import shutil
import subprocess
from typing import Any

import pytest

from trustclip.cli.completion import parser, script
from trustclip.cli.main import main
from trustclip.cli.registry import COMMANDS, added_commands

#: What is typed, and what must be among the proposals; an empty one: the shell completes files.
TYPED = {
    "rep": "report",
    "rl --learn": "--learning-rate",
    "rl --method clip_h": "clip_higher",
    "rl --method.del": "--method.delta",
    "run mine.yaml --rl.learn": "--rl.learning-rate",
    "bounds at": "atr",
    "suggest atr --sh": "--share",
    "eval --backend vl": "vllm",
    "sft --preset ti": "tiny",
    "completion fi": "fish",
    "report run": "",
}
_BASH = """
source "$1"
shift
COMP_WORDS=(trustclip "$@")
COMP_CWORD=$#
_shtab_trustclip
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "fish"):
        (folder / shell).write_text(script(shell), "utf-8")
    return folder


def proposed(shell: str, scripts, typed: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")
    path = str(scripts / shell)
    call = {
        "bash": ["bash", "--norc", "-c", _BASH, "bash", path, *typed.split(" ")],
        "fish": ["fish", "-N", "-c", f"source {path}; complete -C 'trustclip {typed}'"],
    }[shell]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=scripts)
    assert not done.stderr, done.stderr
    return [line.split("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_what_the_program_takes(shell, typed, scripts):
    found = proposed(shell, scripts, typed)
    begun = typed.split(" ")[-1]
    if TYPED[typed]:
        assert TYPED[typed] in found
        assert all(word.startswith(begun) for word in found)
    else:
        assert not set(found) & set(COMMANDS)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not on this machine")
def test_zsh_takes_its_script(scripts):
    (scripts / "_trustclip").write_text(script("zsh"), "utf-8")
    done = subprocess.run(
        ["zsh", "-f", "-c", "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d dump;"
         "autoload +X _trustclip; print $_comps[trustclip]"],
        capture_output=True, text=True, check=False, cwd=scripts,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["_trustclip"], "")


def test_every_command_has_its_options():
    choices: list[Any] = [a.choices for a in parser()._actions if a.nargs == "A..."]
    (commands,) = choices
    assert set(commands) == {*COMMANDS, *added_commands()}
    for name, command in commands.items():
        assert len(command._actions) > 2, f"{name} has no argument but --help and --allow-code"


def test_the_command_prints_the_script(capsys):
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script("bash")
    assert main(["completion", "elvish"]) == 2
    assert "'elvish'" in capsys.readouterr().err
