"""The command line as a user meets it: in a process of its own, from text to exit status."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Literal

import pytest
from commands import trustclip
from patience import NEVER
from ports import free_port

from trustclip.cli.arguments import parse
from trustclip.cli.main import CLI_PACKAGES, main
from trustclip.cli.registry import COMMANDS
from trustclip.support.marks import Also, Argument, Dotted
from trustclip.support.names import TrainingError
from trustclip.train.problems.prompts import Prompt


def test_help_names_every_command_and_loads_no_torch():
    probe = (
        f"import sys; sys.modules.update(dict.fromkeys({CLI_PACKAGES})); "
        "from trustclip.cli.main import main; main(['--help']); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(f"  {command} " in done.stdout for command in COMMANDS)


def test_conform_says_whether_a_loss_is_a_method(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs/conform.md").read_text(encoding="utf-8")
    file = tmp_path / "my_engine.py"
    file.write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    for epsilon, status in (("0.2", 0), ("0.1", 1)):
        said = page.partition(f'--as "clip({epsilon})"\n')[2].partition("```")[0]
        assert main(["conform", f"{file}:loss", "--as", f"clip({epsilon})"]) == status
        assert capsys.readouterr().out == said
    assert main(["conform", f"{file}:loss"]) == 2
    assert "--as is missing" in capsys.readouterr().err


def test_bounds_draws_a_method_of_ones_own(tmp_path):
    own = "from trustclip.methods.atr import ATR\n\n\nclass Mine(ATR):\n    pass\n"
    (tmp_path / "mine.py").write_text(own)
    of = ("bounds", f"{tmp_path / 'mine.py'}:Mine", "--delta", "0.3")
    done = trustclip(*of, "--plot", str(tmp_path / "mine.svg"))
    assert done.stdout.strip().endswith("mine.svg")
    assert "ratio new / old" in (tmp_path / "mine.svg").read_text()


def test_bounds_of_a_threshold_that_adapts_are_those_of_its_initial_value():
    gate = "{controller: target_gate, share: 0.02, initial: 0.07, high: 0.1}"
    done = trustclip("bounds", "atr", "--side", "outward", f"--delta={gate}")
    assert done.returncode == 0, done.stderr
    assert "threshold, which adapts:\nratio interval  [0.670971738250, 1.4222" in done.stdout
    assert "clip_higher" not in done.stdout and "epsilon=" not in done.stdout  # no twin
    done = trustclip("bounds", "trgppo", "--delta", "{controller: target_kl, kl: 0.01}")
    assert "initial threshold" in done.stdout and "1.308484" in done.stdout


def test_doctor_does_the_arithmetic():
    done = trustclip("doctor", "--gradient-accumulation-steps", "4")
    assert done.returncode == 1 and "inert" in done.stdout
    assert "1 optimizer update" in done.stdout and "= 4 x 1 / 4)" in done.stdout
    assert trustclip("doctor").returncode == 0
    done = trustclip("doctor", "--gradient-accumulation-steps", "4", "--num-iterations", "2")
    assert (
        done.returncode == 0
        and "yes: in 1 of the 2 updates" in done.stdout
        and "updates per generation: 2" in done.stdout
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["bonds"], ["unknown command", "'bounds'"]),
        (["train"], ["unknown command", "did you mean 'rl'?"]),
        (["bounds", "art"], ["unknown method", "'atr'"]),
        (["bounds", "atr", "--delat", "1"], ["'delat'", "'delta'"]),
        (["bounds", "atr", "--delta", "{controller: target_gat}"], ["did you mean 'target_gate'"]),
        (["demo", "--seeed", "3"], ["command line", "'seeed'", "did you mean 'seed'"]),
        (["rl", "--preset", "tiny", "--steps-per-generation", "1"], ["inert", "1 x 1 / 1"]),
        (["rl", "--preset", "tiny", "--num-generations", "7"], ["num_generations = 7"]),
        (["rl", "--preset", "tiny", "--model", "no/such/folder"], ["no model"]),
        (["sft", "--model", "tiny"], ["`dataset` is missing", "`output_dir` is missing"]),
        (["eval", "--preset", "tiny", "--tasks", "aime42"], ["aime24"]),
        (
            ["eval", "--preset", "tiny", "--backend", "openai", "--base-url", "notaurl"],
            ["'notaurl' must start with http:// or https://"],
        ),
        (["control", "--see", "3"], ["unknown key 'see'", "'seeds'"]),
        (["control", "--methods"], ["--methods needs a value"]),
        (["compare"], ["PATH is missing; see trustclip compare --help."]),
        (["suite", "a", "--hours", "x"], ["`hours` should be a valid number", "got 'x'"]),
        (["decontaminate", "--train", "x"], ["`test` is missing.", "`out` is missing."]),
        (["eval", "--grade", "missing.jsonl"], ["missing.jsonl"]),
    ],
)
def test_bad_input_gets_one_clear_error(args, words, tmp_path, capsys):
    needs_place = args[0] in ("rl", "eval") and "--preset" in args
    place = ["--output-dir", str(tmp_path / "run")] if needs_place else []
    status = main([*args, *place])
    said = "".join(capsys.readouterr())
    assert status == 2, said
    assert "Traceback" not in said and "\u2502" not in said
    assert not (tmp_path / "run").exists()  # what is refused leaves nothing
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("bounds atr", ""), ("recipes", "1"), ("--help", "1"), ("--version", "")],
)
def test_a_reader_that_has_left_is_no_traceback(words, unbuffered):
    command = [sys.executable, "-m", "trustclip", *words.split()]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(NEVER) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", ["recipes", "--help"])
def test_output_that_cannot_be_written_is_one_sentence(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "trustclip", *words.split()]
        env = os.environ | {"PYTHONUNBUFFERED": ""}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 2
    assert "No space left on device (free some space" in done.stderr
    assert done.stderr.count("\n") == 1


def test_output_in_ascii_has_a_question_mark_for_what_it_lacks():
    done = trustclip("explain", "--help", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "A run directory" in done.stdout
    shown = "a\\u03b4\\u6c49"
    probe = f"from trustclip.cli import streams; streams.write_readably(); print('{shown}')"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.stdout.split() == [b"a??"], done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_wrong_usage_is_one_sentence(name, capsys):
    assert main([name, "--nope", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"trustclip {name}: ") and "---" not in said and said.count("\n") <= 4


@pytest.mark.parametrize("name", COMMANDS)
def test_help_prints_one_usage(name, capsys):
    with contextlib.suppress(SystemExit):
        assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: trustclip ") and said.count("usage:") == 1
    assert "\u2502" not in said


def test_words_become_values_of_the_fields_types():
    @dataclasses.dataclass
    class Wanted:
        """What is wanted."""

        runs: Argument[tuple[Path, ...]]
        count: int | None = 3
        rate: float = 0.5
        fast: bool = False
        kind: Literal["a", "b"] = "a"
        names: Annotated[tuple[str, ...], Also(("-n",))] = ()
        prompt: Prompt = dataclasses.field(default_factory=Prompt)
        columns: Annotated[dict[str, str], Dotted()] = dataclasses.field(default_factory=dict)

    def read(text):
        return parse(Wanted, text.split(), "wanted")

    assert read("a b") == Wanted((Path("a"), Path("b")))
    assert read("--rate 1e-3 a --fast b --count None") == Wanted(
        (Path("a"), Path("b")), None, 1e-3, True
    )
    assert read("a --names=x --no-fast") == Wanted((Path("a"),), names=("x",))
    assert read("a -n 1 2 --kind b --rate -1").names == ("1", "2")
    assert read("a --prompt.system x").prompt == Prompt(system="x")
    assert read("a --columns.answer gold").columns == {"answer": "gold"}
    for text, words in (
        ("", "PATH is missing; see trustclip wanted --help."),
        ("a --count x", "`count` should be a valid integer, unable to parse string as an integer"),
        ("a --count true", "`count` should be a valid integer"),
        ("a --rate", "--rate needs a value"),
        ("a --kind c", "`kind` should be 'a' or 'b', got 'c'"),
        ("a --fasst", "unknown option '--fasst' of wanted; did you mean '--fast'?"),
        ("a --preset x", "unknown option '--preset' of wanted"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            read(text)


def test_ctrl_c_during_an_import_ends_the_command_whatever_the_module_does(tmp_path):
    (tmp_path / "swallows.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    sum(range(1000))\n"
        "except BaseException:\n    pass\n"
    )
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trustclip.cli import main\n"
        "from trustclip.cli.commands import machine\n"
        "machine.doctor = lambda _: print(__import__('swallows')) or 0\n"
        "sys.argv = ['trustclip', 'doctor']\n"
        "main.command()\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "RANK"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted.\n")


@pytest.fixture
def failing(monkeypatch):
    """`trustclip COMMAND` whose work is a function that is given."""
    from trustclip.cli import main as cli

    before = signal.getsignal(signal.SIGTERM)

    def run(action, command="report"):
        module = types.ModuleType("trustclip.cli.commands.failing")
        setattr(module, "evaluate" if command == "eval" else command, lambda argv: action())
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, command, COMMANDS[command]._replace(module=module.__name__))
        return cli.main([command])

    yield run
    signal.signal(signal.SIGTERM, before)


def unread_yaml():
    import yaml

    yaml.safe_load("a: [1,\n  2")


def damaged_weights():
    from safetensors.torch import load

    load(b"no header")


def lost():
    raise TrainingError("the weights are not finite")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (
            lambda: Path("/nowhere/at/all").read_text(),
            "/nowhere/at/all: No such file or directory.",
        ),
        (lambda: Path(".").write_text(""), ".: Is a directory (name a file"),
        (unread_yaml, "while parsing a flow sequence"),
        (damaged_weights, "header"),
        (lost, "the weights are not finite"),
        (lambda: __import__("vllm"), "vllm is not installed: pip install 'trustclip[vllm]'."),
        (lambda: __import__("no_such_package.inside"), "pip install no_such_package."),
    ],
    ids=["missing", "folder", "yaml", "weights", "training", "extra", "package"],
)
def test_failure_is_one_sentence_and_status_2(failing, capsys, action, words):
    assert failing(action) == 2
    said = capsys.readouterr().err
    assert said.startswith("trustclip report: ") and said.count("\n") == 1
    assert words in said


def test_the_traceback_is_shown_on_request(failing, capsys, monkeypatch):
    monkeypatch.setenv("TRUSTCLIP_TRACEBACK", "1")
    assert failing(lost) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and said.endswith("trustclip report: the weights are not finite\n")


@pytest.mark.parametrize(
    "action",
    [
        lambda: None + 1,  # pyright: ignore[reportOperatorIssue]
        lambda: {}["key"],
        lambda: __import__("trustclip.gone"),
    ],
)
def test_a_bug_keeps_its_traceback(failing, action):
    with pytest.raises((TypeError, KeyError, ModuleNotFoundError)):
        failing(action)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("command", ["demo", "sft", "rl", "eval", "run", "report", "suite"])
def test_a_signal_in_any_phase_leaves_with_a_sentence(failing, capsys, command, number):
    """Outside training, where nothing is listening: while libraries are imported, for example."""
    import os

    def interrupted():
        os.kill(os.getpid(), getattr(signal, number))
        raise AssertionError("the signal did not end it")

    try:
        status = failing(interrupted, command)
    except SystemExit as ended:
        status = ended.code
    continued = command not in ("report", "suite")
    assert status == (0 if continued else 128 + getattr(signal, number))
    said = capsys.readouterr().err
    assert said == ("\nstopped; the same command continues.\n" if continued else "\ninterrupted.\n")


@pytest.mark.slow
def test_a_rank_that_never_starts_is_one_sentence_of_the_others():
    code = """
import datetime, sys
import torch.distributed as dist
from trustclip.cli import main
from trustclip.cli.commands import machine
machine.doctor = lambda _: dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1))
sys.exit(main.main(["doctor"]))
"""
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    alone["MASTER_PORT"] = str(free_port())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | alone
    )
    assert done.returncode == 2, done.stderr
    sentence = "trustclip doctor: rank 0 has not found the other ranks of the job: "
    assert sentence in done.stderr and "1/2 clients joined" in done.stderr
    assert "Traceback" not in done.stderr
    with socket.create_server(("127.0.0.1", int(alone["MASTER_PORT"]))):  # of another run
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, env=os.environ | alone | {"WORLD_SIZE": "1"},
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"port {alone['MASTER_PORT']} (MASTER_PORT) is taken" in done.stderr


def test_runs_that_begin_together_take_ports_of_their_own(monkeypatch):
    from trustclip.engines.trl.upstream import own_port

    monkeypatch.delenv("MASTER_PORT", raising=False)
    own_port()
    taken = int(os.environ["MASTER_PORT"])
    assert taken not in (29500, 23456, 12355, 12345)  # those that TRL tries first
    with socket.create_server(("127.0.0.1", taken)):
        monkeypatch.delenv("MASTER_PORT")
        own_port()
        assert int(os.environ["MASTER_PORT"]) != taken
    monkeypatch.setenv("MASTER_PORT", "7")
    own_port()
    assert os.environ["MASTER_PORT"] == "7"


def test_stored_completions_are_graded_again(tmp_path):
    """From a run's folder or a table; what changed is counted, and the verdicts can be written."""
    rows = [
        {"response": r"It is \boxed{\frac{1}{2}}.", "gold": "0.5", "correct": 0},
        {"response": r"It is \boxed{3}.", "gold": "4", "correct": 0},
    ]
    run, table = tmp_path / "run", tmp_path / "answers.csv"
    run.mkdir()
    for shard, row in zip(("samples.jsonl", "samples-rank1.jsonl"), rows, strict=True):
        (run / shard).write_text(json.dumps(row) + "\n", "utf-8")
    table.write_text("answer,gold\n\\boxed{4},4\n", "utf-8")
    done = trustclip("eval", "--grade", str(run), "--out", str(tmp_path / "graded.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "1 of 2 right (50.0%)" in done.stdout and "changed 1" in done.stdout
    graded = [json.loads(line) for line in (tmp_path / "graded.jsonl").read_text().splitlines()]
    assert [row["correct"] for row in graded] == [1, 0]
    assert "1 of 1 right" in trustclip("eval", "--grade", str(table)).stdout
    done = trustclip("eval", "--grade", str(tmp_path))
    assert (
        done.returncode == 2 and f"{tmp_path / 'samples.jsonl'} holds no completion" in done.stderr
    )
