"""Put a built site beside those of other versions: python docs/publish.py BUILD SITE VERSION.

SITE is what a web server serves: a folder for each version (``main``, ``v0.1.0``), a
``versions.json`` for the list in the sidebar, and a first page that leads to the newest release, or
to ``main``.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

FIRST = """<!doctype html>
<meta charset="utf-8">
<title>trustclip</title>
<link rel="icon" href="{0}/_static/icon.svg">
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">trustclip</a>
"""
_RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)(.*)")


def age(version: str) -> tuple[bool, list[int], bool]:
    """A key that sorts versions from the oldest release to the newest, others before all."""
    match = _RELEASE.fullmatch(version)
    if match is None:
        return False, [], False
    return True, [int(part) for part in match.groups()[:3]], not match[4]


def publish(build: Path, site: Path, version: str) -> list[str]:
    """Put a build into a site.

    Args:
      build: folder with the built pages.
      site: folder of all versions; made if it is missing.
      version: name of this one; an earlier build of it is replaced.

    Returns:
      Every version of the site, the one to show first at the front.

    Raises:
      ValueError: the build has no pages, or the name cannot be a folder.

    Example:
      >>> sorted(["v0.9.0", "main", "v0.10.0", "v0.10.0rc1"], key=age, reverse=True)
      ['v0.10.0', 'v0.10.0rc1', 'v0.9.0', 'main']
    """
    if not (build / "index.html").is_file():
        raise ValueError(f"{build} has no index.html: run make docs.")
    if not re.fullmatch(r"\w[\w.+-]*", version):
        raise ValueError(f"{version!r} is no name of a version: a tag such as v0.1.0, or main.")
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(build, site / version, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    names = [folder.name for folder in site.iterdir() if (folder / "index.html").is_file()]
    versions = sorted(names, key=age, reverse=True)
    listed = [{"name": name, "url": f"{name}/"} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(FIRST.format(versions[0]), encoding="utf-8")
    (site / ".nojekyll").touch()  # folders whose names begin with an underscore are pages' own
    summary = site / versions[0] / "llms.txt"
    if summary.is_file():  # programs look for it at the top
        text = summary.read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!\w+:)", f"]({versions[0]}/", text)
        (site / "llms.txt").write_text(text, encoding="utf-8")
    return versions


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("site", type=Path)
    parser.add_argument("version")
    given = parser.parse_args()
    print(*publish(given.build, given.site, given.version))
