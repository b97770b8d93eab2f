"""What `pyproject.toml` cannot say of the build: a wheel holds the recipes of ``recipes/``.

Copied rather than linked: a checkout or an archive without symbolic links would hold links as text.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Folders of ``recipes/`` that are run by name, and their schemas for editors.
FOLDERS = {"": "*.yaml", "suites": "*.yaml", "schema": "*.json"}


class WithRecipes(build_py):
    """Copies the recipes and suites into the package; an editable install reads the originals."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if self.editable_mode:
            return
        for folder, files in FOLDERS.items():
            to = Path(self.build_lib, "trustclip", "train", "shipped", folder)
            to.mkdir(parents=True, exist_ok=True)
            for file in sorted(Path("recipes", folder).glob(files)):
                self.copy_file(str(file), str(to / file.name))


setup(cmdclass={"build_py": WithRecipes})
