"""``trustclip`` in a process of its own, forked from one that has imported everything once.

Imports take longer than most commands that tests run. A command whose environment differs in what
is read at import starts Python anew, as do tests of signals, of imports and of the entry points.
"""

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CODE = "import sys; from trustclip.cli.main import main; sys.exit(main())"
#: What is read at import, or before.
EARLY = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "OMP_", "MKL_", "PYTHON", "CUDA_", "TORCH_")


def trustclip(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output captured."""
    return _ended(("-c", CODE, *args), dict(os.environ) if env is None else env)


def script(path: Path) -> subprocess.CompletedProcess[str]:
    """Run a file of Python to its end, its output captured."""
    return _ended((str(path),), dict(os.environ))


def _ended(args: tuple[str, ...], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Python with arguments, forked where it would import the same."""
    if hasattr(os, "fork") and _early(env) == _server()[1]:
        return _forked(args, env)
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env)


def _early(env: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(EARLY)}


@cache
def _server() -> tuple[subprocess.Popen[str], dict[str, str]]:
    """The process to fork from, and the environment that its imports have seen."""
    paths = [path for path in sys.path if path]
    process = subprocess.Popen(
        [sys.executable, __file__, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def end() -> None:
        if process.stdin and process.stdout:
            process.stdin.close()
            process.stdout.close()
        process.wait()

    atexit.register(end)
    return process, _early(dict(os.environ))


def _forked(args: tuple[str, ...], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    process, _ = _server()
    assert process.stdin and process.stdout
    with TemporaryDirectory() as folder:
        request = {"args": args, "env": env, "where": os.getcwd(), "folder": folder}
        print(json.dumps(request), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        said = [(Path(folder) / name).read_text() for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess([sys.executable, *args], status, *said)


def _serve() -> dict[str, Any] | None:
    """Fork for every request; returns the request in the child, None when there are no more."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _take_over(request: dict[str, Any]) -> None:
    """Be the process that the request describes."""
    folder = Path(request["folder"])
    flags = os.O_WRONLY | os.O_CREAT
    for number, path in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
        opened = os.open(path, os.O_RDONLY if number == 0 else flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)  # without what the parent had read ahead
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["where"])
    sys.argv = request["args"]


def import_everything() -> None:
    """Everything heavy that a command imports; a failure is the command's to report."""
    for module in ("torch", "datasets", "trustclip.train.pipeline", "trustclip.train.rl",
                   "trustclip.train.sft", "trustclip.train.eval", "trustclip.train.trainers",
                   "trustclip.engines.trl.trainer", "trustclip.cli.commands.experiments",
                   "trustclip.cli.commands.evidence"):  # fmt: skip
        try:
            __import__(module)
        except ImportError:
            break
    else:
        from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401
        from trl.trainer.sft_trainer import SFTTrainer  # noqa: F401

        from trustclip import methods

        methods()
    gc.freeze()  # collections in the children leave these pages shared


if __name__ == "__main__":
    sys.path[:] = sys.argv[1:]
    import_everything()
    given = _serve()
    if given is not None:
        _take_over(given)
        try:
            if sys.argv[0] == "-c":
                exec(sys.argv.pop(1))
            else:
                runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)  # without taking down, object by object, what has been imported
