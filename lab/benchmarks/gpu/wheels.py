"""Packages for a GPU machine without a network: gathered elsewhere, installed beside its packages.

``gather`` downloads the wheels of ``requirements/gpu.txt`` into a folder; ``install`` unpacks those
that the machine lacks into another, which goes on PYTHONPATH. Nothing of the machine is changed.
"""

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PINS = ROOT / "requirements" / "gpu.txt"
#: Oldest C libraries that wheels are built for, of systems with glibc 2.28 and newer.
_PLATFORMS = ("2_28", "2_27", "2_26", "2_24", "2_17", "2014", "2_12", "2_5", "1")
_MIB = 2**20


def pins(path: Path = PINS) -> list[str]:
    """The lines ``name==version`` of a requirements file.

    Example:
      >>> next(line for line in pins() if line.startswith("trl="))
      'trl==1.16.0'
    """
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


def gather(folder: Path, pythons: Sequence[str], more: Sequence[str], limit: float) -> int:
    """Download wheels for each version of Python; stop where the folder would grow too large."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [
        f"--platform=manylinux{'' if p in ('2014', '1') else '_'}{p}_x86_64" for p in _PLATFORMS
    ]
    missing = []
    for python in pythons:
        for pin in [*pins(), *more]:
            command = [
                *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)),
                *("--only-binary=:all:", "--python-version", python, "--implementation", "cp"),
                *platforms, pin,
            ]  # fmt: skip
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
                missing.append(f"{pin} for Python {python}")
    size = sum(path.stat().st_size for path in folder.glob("*.whl")) / _MIB
    print(f"{len([*folder.glob('*.whl')])} wheels, {size:.1f} MiB, in {folder}")
    for name in missing:
        print(f"no wheel: {name}")
    if size > limit:
        print(f"that is more than {limit:g} MiB: leave a version of Python or a package out")
        return 1
    return 0


def install(folder: Path, site: Path) -> int:
    """Unpack what the machine lacks, or has too old, into a separate folder."""
    if not folder.is_dir():
        print(f"no {folder}: what is missing here stays missing (make gpu-wheels, elsewhere)")
        return 0
    needed = [pin for pin in pins() if (reason := lacking(pin, bounds())) and _say(pin, reason)]
    done = 0
    for pin in needed:
        command = [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"),
            *("--no-compile", "--upgrade", "--find-links", str(folder), "--target", str(site), pin),
        ]  # fmt: skip
        failed = subprocess.run(command, stderr=subprocess.DEVNULL).returncode
        done += not failed
        if failed:
            print(f"not installed: {pin}; {folder} has no wheel of it for this Python")
    print(f"{done} packages in {site}; nothing of this machine was changed")
    for complaint in conflicts(site):
        print(f"may not work: {complaint}")
    return 0


def _say(pin: str, reason: str) -> bool:
    print(f"{pin}: {reason}")
    return True


def bounds() -> dict[str, Requirement]:
    """The releases that both pyproject.toml allow, by package."""
    lines: list[str] = []
    for file in (ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml"):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        lines += project["dependencies"]
        for extra in project["optional-dependencies"].values():
            lines += extra
    requirements = (Requirement(line) for line in lines)
    return {canonicalize_name(each.name): each for each in requirements}


def lacking(pin: str, allowed: dict[str, Requirement]) -> str | None:
    """Why a package has to be installed; None where the machine's own serves."""
    name = canonicalize_name(pin.partition("==")[0])
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not here"
    bound = allowed.get(name)
    if bound is not None and not bound.specifier.contains(installed, prereleases=True):
        return f"{installed} is here, and {bound.specifier} is needed"
    if name == "typing-extensions" and _numbers(installed) < _numbers(pin.partition("==")[2]):
        return f"{installed} is here, too old for pydantic"
    return None


def conflicts(site: Path) -> Iterator[str]:
    """Needs of the packages in a folder that neither it nor the machine meets."""
    path = [str(site), *sys.path]
    installed = {
        canonicalize_name(each.name): each.version
        for each in reversed([*importlib.metadata.distributions(path=path)])
        if each.name
    }
    for package in importlib.metadata.distributions(path=[str(site)]):
        for text in package.requires or ():
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            version = installed.get(canonicalize_name(need.name))
            if version is None or not need.specifier.contains(version, prereleases=True):
                yield f"{package.name} needs {need.name}{need.specifier}; here is {version}"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("gather", "install"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".gpu" / "wheels")
    parser.add_argument("--site", type=Path, default=ROOT / ".gpu" / "site")
    parser.add_argument("--python", default="3.11 3.12 3.13", help="versions, one or several")
    parser.add_argument("--more", default="", help="further packages, NAME==VERSION")
    parser.add_argument("--limit", type=float, default=60.0, help="of the folder, MiB")
    args = parser.parse_args(argv)
    if args.what == "gather":
        return gather(args.folder, args.python.split(), args.more.split(), args.limit)
    return install(args.folder, args.site)


if __name__ == "__main__":
    sys.exit(main())
