"""Pages written from the package itself when the site is built: methods, commands, metrics, ...

Nothing of them is kept in the repository. What no program can know (traps, what people report)
stands in ``methods.toml``; what was measured comes from the committed tables.
"""

import dataclasses
import inspect
import io
import os
import re
import tomllib
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from arena_entry import read_entry
from arena_page import contents
from sphinx.application import Sphinx

import trustclip as tc
from extensions.method_pages import first_line, method_page, value
from extensions.metrics import GROUPS
from trustclip.cli.main import main
from trustclip.cli.registry import COMMANDS, distributions
from trustclip.constraints.base import ALIASES
from trustclip.constraints.notation import spelled
from trustclip.engines.limits import trains_in
from trustclip.report.draw.figures import every_gate
from trustclip.report.microscope import token_page
from trustclip.support.marks import descriptions
from trustclip.support.text import markdown_table
from trustclip.train.settings.stages import Recipe, RecipeEval, RLStage, SFTStage
from trustclip_lab.arena.run import TABLE
from trustclip_lab.pages import sections_page
from trustclip_lab.pages.atlas import atlas_page

#: Methods on the first page: a clip, one with a ceiling, one that bends, one that never cuts.
FAMILIES = ("atr", "dual_clip", "soft_gate", "cispo")
#: Sections of a recipe, and the class that each fills.
SECTIONS = {"": Recipe, "sft": SFTStage, "rl": RLStage, "eval": RecipeEval}


def index_page() -> str:
    """The table of all methods, and the tree of their pages."""
    rows = []
    for name, cls in tc.methods().items():
        rows.append((f"[`{name}`]({name}.md)", first_line(name), ", ".join(trains_in(cls()))))
    tree = "\n".join(["atlas", *tc.methods()])
    aliases = "; ".join(
        f"`{a}` is `{spelled({'name': of, **by})}`" for a, (of, by) in ALIASES.items()
    )
    return (
        "# Methods\n\nEach method has a page, and the defaults of its source. The last column says "
        "where it trains with these defaults; *your loop* is `trustclip.policy_loss`. "
        "[Which one should I take?](../choose.md)\n\n"
        f"{markdown_table(('method', 'what it does', 'trains in'), rows)}\n\n"
        f"Other names: {aliases}. [Combine and adapt them](../combine.md).\n\n"
        "::::{container} scrolls\n```{image} gates/all.svg\n:class: gate wide\n"
        ":alt: gradient weights\n```\n::::\n\n"
        "*Horizontal: the ratio, how much likelier a token has become. Vertical: how much of its "
        "gradient is left, at each method's defaults. If the old probability matters, it is 0.3; "
        "if the exact KL matters, the token's k3 stands for it.*\n\n"
        f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


ATLAS = """\
# Atlas of gates

The atlas shows every method's gradient weight, ratio interval, formula and source. **+** draws
methods next to each other. If a gate is an interval, each hyper-parameter has a slider. Every other
method is drawn at its defaults.

<iframe class="atlas whole" src="../_static/atlas.html?embedded" title="atlas of gates"></iframe>
"""


def arena_page(root: Path) -> dict[str, str]:
    """The arena's interactive page, from its committed table."""
    folder = root / "lab/benchmarks/arena"
    if not (folder / TABLE).exists():
        return {}
    entry = read_entry(folder)
    found = contents(entry, entry.links("../methods/{}.html"))
    return {"_static/arena.html": sections_page(found, "Arena of constraints")}


def commands_page() -> str:
    """Every command with its own help text."""
    parts = [
        "# Commands\n\nThis page is what `trustclip COMMAND --help` prints. Options that are "
        "passed on keep their names: `--max-completion-length`, `--num-generations` and, for "
        "fine-tuning, `--max-length` are TRL's names, `--max-tokens` is that of servers. "
        "`--output-dir` is the folder of a run; `--out` is one file.",
        "```text\n" + _help() + "\n```",
    ]
    for package, commands in {"": COMMANDS, **distributions()}.items():
        parts += [f"## {package}\n\nWhat the package adds."] if package else []
        for name, one in commands.items():
            parts.append(f"## `trustclip {name}`\n\n{one.does[0].upper()}{one.does[1:]}.")
            parts.append("```text\n" + _help(name) + "\n```")
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    """Help of a command in 100 columns, without colour."""
    text = io.StringIO()
    width = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, width), redirect_stdout(text), suppress(SystemExit):
        main([*command, "--help"])
    return text.getvalue().rstrip()


def recipe_page(root: Path) -> str:
    """Every key of a recipe with its type, default and meaning, and the packaged example."""
    parts = [
        "# Recipe\n\nA recipe is one YAML file, and `trustclip run RECIPE` trains and evaluates "
        "what it says. A key that you leave out has the default below. A wrong key is refused, "
        "with its line and the nearest right name. Each key is also a flag: "
        "`--rl.learning-rate 1e-5`.",
        "```yaml\n" + (root / "recipes" / "tiny.yaml").read_text(encoding="utf-8") + "```",
    ]
    for section, settings in SECTIONS.items():
        described = descriptions(settings)
        rows = [
            (f"`{f.name}`", f"`{_default(f)}`", described.get(f.name, "").replace("|", "\\|"))
            for f in dataclasses.fields(settings)
        ]
        parts.append(f"## `{section}`\n\n" if section else "## At the top\n\n")
        parts[-1] += markdown_table(("key", "default", "what it is"), rows)
    return "\n\n".join(parts) + "\n"


#: Where a metric is found -> its word in the table.
PLACES = {"loss": "call", "log": "log", "verl": "verl"}


def metrics_page() -> str:
    """Every logged metric, by group."""
    parts = [
        "# Metrics\n\nThis page lists everything that is logged. A row of a run's `metrics.jsonl` "
        "has a `stage` (`sft`, `rl`, `eval`, `sampler`, `notice`), a `step`, and the metrics below "
        "by name. In a dashboard the stage stands before the name (`rl/trustclip/gated`).\n\n"
        "A share is in [0, 1]. Nats are natural logarithms. π_θ is the policy in training, π_old "
        "the policy from which the updates began, π_b the sampler. *Between* names the two "
        "policies that are compared; if it is empty, the metric is about one policy. *Over* says "
        "what is averaged within a log line: all its micro-batches, updates (`logging_steps`) and "
        "ranks, weighted by their counts. TRL skips completions without an advantage where that "
        "changes no gradient, and they count in no metric under `trustclip/`.\n\n"
        "*In* says where a metric is found:\n\n"
        "- *call*: in `policy_loss(...).metrics`, as (sum, count) without prefix;\n"
        "- *log*: in a log line of our trainer in TRL, of the observer of TRL's own, and of "
        "control;\n"
        "- *verl*: in engines that call a loss. Each micro-batch divides by its own tokens, and "
        "verl averages micro-batches and ranks without weights. SkyRL, NeMo RL, prime-rl and "
        "Tinker have these metrics as far as they give a loss the numbers."
    ]
    shown = [
        (f"`{g.prefix}{m.name}`", m.what, m.unit, m.todo)
        for g in GROUPS.values() for m in g.metrics if m.todo
    ]  # fmt: skip
    parts.append(
        "## What a log of TRL has by default\n\nThese are all metrics of ours that a training with "
        "`ConstrainedGRPOTrainer` logs, those of the sampler only where another program samples; "
        'methods and settings that have metrics of their own add these. `metrics="full"` logs '
        "every metric of this page, and so does a training with a recorder or from a recipe."
    )
    parts.append(markdown_table(["metric", "what it is", "unit", "what to do"], shown))
    for group in GROUPS.values():
        head = ["metric", "what it is", "unit", "over", "between", "in"]
        if not any(metric.places for metric in group.metrics):
            head.pop()
        rows = [
            (
                f"`{metric.name}`",
                metric.what,
                metric.unit,
                metric.over,
                metric.between,
                ", ".join(word for place, word in PLACES.items() if place in metric.places),
            )[: len(head)]
            for metric in group.metrics
        ]
        under = f"Under `{group.prefix}`. " if group.prefix else ""
        parts.append(f"## {group.title}\n\n{under}{group.about}".rstrip())
        parts.append(markdown_table(head, rows))
    parts.append(
        "Which completions a gate cut is not in these rows but in `gates.jsonl` (shares, update by "
        "update), and which words in `tokens/` ([tokens](../tokens.md)). "
        "[How to read all this](../diagnostics.md)."
    )
    return "\n\n".join(parts) + "\n"


def _default(one: Any) -> str:
    if one.default is not dataclasses.MISSING:
        return str(one.default)
    if one.default_factory is not dataclasses.MISSING:
        return value(one.default_factory())
    return "required"


def papers_page() -> str:
    """Every paper that a method's docstring cites, with the calls that are its methods."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name, cls in tc.methods().items():
        _, _, cited = inspect.getdoc(cls).partition("References:")
        for entry in re.split(r";\s*\n", cited):
            text = " ".join(entry.split())
            number = re.search(r"\d{4}\.\d{5}", text)
            if number:
                title = re.sub(r"`([^<`]+?) ?<[^>]+>`_", r"\1", text)
                found.setdefault(number[0], (title, []))[1].append(name)
    rows = [
        (
            re.sub(r" ?\(arXiv [^)]*\)", "", title),
            f"[{number}](https://arxiv.org/abs/{number})",
            ", ".join(f"[`{n}`](methods/{n}.md)" for n in names),
        )
        for number, (title, names) in sorted(found.items())
    ]
    return (
        "# Papers\n\nThe methods come from these papers, oldest first. The last column is the name "
        'to call: `tc.method("name")`.\n\n'
        + markdown_table(("paper", "arXiv", "method"), rows)
        + "\n"
    )


#: File of the repository -> page that shows it.
SHOWN = {
    "CHANGELOG.md": "project/changes.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/RESULTS.md": "project/measurements.md",
}


def shown(root: Path, name: str) -> str:
    """A file of the repository as a page: its links, relative to it, become those of the site."""
    here = (root / name).parent

    def replaced(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = (here / path).resolve()
        if not target.is_relative_to(root):
            return match[0]
        to = target.relative_to(root).as_posix()
        if to in SHOWN:
            return f"[{text}](/{SHOWN[to]}{anchor})"
        if to.startswith("docs/") and to.endswith(".md"):
            return f"[{text}](/{to.removeprefix('docs/')}{anchor})"
        return text if text.strip("`") == to else f"{text} (`{to}`)"

    source = (root / name).read_text(encoding="utf-8")
    source = re.sub(r"(!\[[^\]]*\])\(([^)]+)\)", rf"\1(../../{Path(name).parent}/\2)", source)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", replaced, source)


def write(app: Sphinx) -> None:
    """Write what is missing or has changed; unchanged files keep their time."""
    docs = Path(app.srcdir)
    root = docs.parent
    notes = tomllib.loads((docs / "methods.toml").read_text(encoding="utf-8"))
    unknown = set(notes) - set(tc.methods())
    if unknown:
        raise ValueError(f"docs/methods.toml names methods that do not exist: {sorted(unknown)}")
    pages = {
        "methods/index.md": index_page(),
        "methods/atlas.md": ATLAS,
        "_static/atlas.html": atlas_page(),
        "_extra/microscope/index.html": token_page((), "Microscope"),
        **arena_page(root),
        "reference/commands.md": commands_page(),
        "reference/recipe.md": recipe_page(root),
        "reference/metrics.md": metrics_page(),
        "papers.md": papers_page(),
        **{page: shown(root, name) for name, page in SHOWN.items()},
    }
    pages["methods/gates/families.svg"] = every_gate({name: tc.method(name) for name in FAMILIES})
    pages["methods/gates/all.svg"] = every_gate({name: tc.method(name) for name in tc.methods()})
    for name in tc.methods():
        pages[f"methods/{name}.md"] = method_page(name, root, notes.get(name, {}))
        pages[f"_static/gates/{name}.svg"] = every_gate({name: tc.method(name)})
    for name, text in pages.items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
