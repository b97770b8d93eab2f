"""Installed wheels, used from an empty folder: `make wheel-check`, and slowly `make wheel-use`.

``core``: the library with its core dependencies alone. ``lab``: with the laboratory beside it.
``use``: with the extra ``train``, the demo, a recipe, a suite, a report, and every example of the
documentation.
"""

import importlib.util
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import trustclip as tc
from trustclip.cli.registry import KNOWN

ROOT = Path(__file__).resolve().parents[1]
#: What the documentation's examples call a run of one's own -> a run that is here.
STAND_INS = {
    "runs/rl": "runs/tiny",
    "runs/mine": "runs/tiny",
    "runs/other": "runs/demo-atr-seed0",
    "runs/eval-a": "runs/demo-atr-seed0",
    "runs/eval-b": "runs/tiny",
    "runs/eval-clip": "runs/demo-atr-seed0",
    "runs/eval-atr": "runs/tiny",
}
#: Why an example is not run here -> what it begins with, or a part of it.
LEFT_OUT = {
    "needs a model, problems or a recipe of one's own": (
        "rl", "sft", "eval", "decontaminate", "init", "try", "run recipe.yaml",
    ),
    "reads what only its reader has": (
        "evals/", "runs/clip-0", "runs/pilot", "runs/paper", "runs/trl", "trl-output/",
        "rank_0.jsonl", "results.csv", "simple_human_eval", "my_", "doctor --verl",
        "doctor --sampler", "tokens runs/rl --update 41",
    ),
    "takes minutes or hours": (
        "resume", "suite recipes/", "runs/noise-tiny", "runs/table3-tiny", "arena", "lab",
        "tabular --methods all",
    ),
    "needs an extra or the hub": ("control", "demo --model smollm2", "run recipes/paper"),
    "reads tables of the checkout": ("benchmarks/",),
    "is not a whole command": ("...",),
}  # fmt: skip
#: Pages whose Python is not run here -> why.
LEFT_OUT_PAGES = {
    "README.md": "its blocks continue what the reader has",
    "control.md": "needs the extra `control`",
}
#: Commands of the laboratory that need minutes at most.
LAB = (
    "lab --task needle --seeds 2 --generations 1 --width 8 --prompts 4 --output-dir runs/lab-check",
    "theory",
    "tabular --seeds 2 --generations 1 --learning-rates 8 --methods clip",
    "paper",
    "bench gpu --tiny --stages correctness --device cpu --minutes 5 --out gpu",
    "recipes arena-same-trial",
)
SUITE = """\
name: small
recipe: tiny.yaml
output_dir: runs/small
seeds: [0, 1]
changes: {sft.max_steps: 20, rl.max_steps: 8, eval.every: 8}
methods: {atr: {name: atr}, clip: {name: clip}}
reference: atr
"""


def core() -> None:
    """The library, without the packages of the commands."""
    packages = ("yaml", "rich", "scipy", "trl")
    extra = [name for name in packages if importlib.util.find_spec(name)]
    assert not extra, f"the core brings {', '.join(extra)}"
    methods = {name: tc.method(name) for name in tc.methods()}
    assert len(methods) == len(list(Path(tc.__file__).parent.glob("methods/[a-z]*.py")))
    low, high = tc.interval("atr", delta=0.07)
    assert (round(float(low), 12), round(float(high), 12)) == (0.67097173825, 1.422216736276)
    print(f"trustclip {tc.__version__}: {len(methods)} methods, atr in [{low:.6f}, {high:.6f}]")
    for command, needed in (("bounds atr", "cli"), ("demo", "train"), ("report runs/a", "report")):
        done = trustclip(command)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        assert f"'trustclip[{needed}]'" in done.stderr, done.stderr
        print("without its extra:", done.stderr.strip())
    assert "commands of" not in trustclip("--help").stdout
    for command in KNOWN["trustclip-lab"]:
        done = trustclip(command)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        assert "pip install trustclip-lab." in done.stderr, done.stderr
    print("without the laboratory:", done.stderr.strip())


def lab() -> None:
    """The laboratory's commands, presets and tables."""
    import trustclip_lab

    assert trustclip_lab.__version__ == tc.__version__
    listed = trustclip("--help").stdout.partition("commands of trustclip-lab:")[2]
    assert all(f"\n  {command} " in listed for command in KNOWN["trustclip-lab"]), listed
    for command in LAB:
        run(command)
    assert "trustclip arena arena\n" in trustclip("recipes").stdout
    assert "'trustclip[control]'" in trustclip("control").stderr


def use() -> None:
    """The commands, and the examples of the documentation."""
    run("demo")
    run("run tiny")
    run("recipes")
    run("recipes tiny")
    Path("small.yaml").write_text(SUITE, encoding="utf-8")
    run("suite small.yaml")
    run("report runs/small runs/tiny -o report")
    assert "<html" in Path("report/index.html").read_text(encoding="utf-8")
    run("lab --task needle --seeds 2 --generations 2")
    for path, there in STAND_INS.items():
        shutil.copytree(there, path)
    examples()
    python()


def examples() -> None:
    """Every command of the documentation that needs nothing of the user's own."""
    from support.doc_pages import PAGES, commands

    seen: set[str] = set()
    for command in [command for page in PAGES for command in commands(page)]:
        reasons = [why for why, parts in LEFT_OUT.items() if any(has(command, p) for p in parts)]
        if command in seen:
            continue
        seen.add(command)
        if reasons:
            print(f"- trustclip {command}: {reasons[0]}", flush=True)
        elif command not in ("demo", "run tiny", "run recipes/tiny.yaml"):  # run already
            run(command)


def has(command: str, part: str) -> bool:
    """Whether a command begins with these words, or a part that is no plain word is in it."""
    return f"{command} ".startswith(f"{part} ") or (not part.isalpha() and part in command)


def python() -> None:
    """Every Python block of the documentation, page by page."""
    from support.doc_pages import PAGES, name
    from support.doc_pages import python as blocks

    for page in PAGES:
        scope: dict = {"__name__": "page"}
        if page.name in LEFT_OUT_PAGES:
            print(f"- Python of {name(page)}: {LEFT_OUT_PAGES[page.name]}", flush=True)
            continue
        for block in blocks(page):
            exec(compile(block, name(page), "exec"), scope)
    print("every other Python block of the documentation runs")


def trustclip(command: str) -> subprocess.CompletedProcess[str]:
    """A command of the installed wheel."""
    words = [sys.executable, "-m", "trustclip", *shlex.split(command)]
    return subprocess.run(words, capture_output=True, text=True)


def run(command: str) -> None:
    """A command that must succeed."""
    start = time.monotonic()
    done = trustclip(command)
    assert done.returncode == 0, (
        f"trustclip {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    assert "Traceback" not in done.stderr, done.stderr
    print(f"+ trustclip {command}  ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    here = ROOT / "src"
    assert here not in Path(tc.__file__).resolve().parents, "this is the checkout, not the wheel"
    {"core": core, "lab": lab, "use": use}[sys.argv[1]]()
