"""The badges of the README, from pyproject.toml: python docs/badges.py."""

import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
#: Width of a character and the room beside a text, pixels.
CHARACTER, ROOM = 6.6, 10

BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img">
<title>{name}: {value}</title>
<rect width="{width}" height="20" rx="3" fill="#1f6feb"/>
<path d="M3 0h{left}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#4d5156"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{at_name}" y="14">{name}</text><text x="{at_value}" y="14">{value}</text>
</g>
</svg>
"""


def badge(name: str, value: str) -> str:
    """A badge as SVG."""
    first, second = (round(len(text) * CHARACTER + ROOM) for text in (name, value))
    return BADGE.format(
        name=name,
        value=value,
        width=first + second,
        left=first - 3,
        at_name=first / 2,
        at_value=first + second / 2,
    )


def badges(root: Path) -> dict[str, str]:
    """File name -> badge, by what pyproject.toml says."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    return {
        "licence.svg": badge("licence", project["license"]),
        "python.svg": badge("Python", f"{oldest} or newer"),
    }


if __name__ == "__main__":
    (DOCS / "badges").mkdir(exist_ok=True)
    for name, text in badges(DOCS.parent).items():
        (DOCS / "badges" / name).write_text(text, encoding="utf-8")
