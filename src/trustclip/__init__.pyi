"""The public names, each with the module that it is in; `trustclip` loads it on first use."""

from trustclip import head as head
from trustclip.constraints import controllers as controllers
from trustclip.constraints import divergences as divergences
from trustclip.constraints import gates as gates
from trustclip.constraints.base import Method as Method
from trustclip.constraints.base import Trait as Trait
from trustclip.constraints.base import definition as definition
from trustclip.constraints.base import methods as methods
from trustclip.constraints.batch import Loss as Loss
from trustclip.constraints.batch import Surrogate as Surrogate
from trustclip.constraints.batch import TokenBatch as TokenBatch
from trustclip.constraints.check import check as check
from trustclip.constraints.conformance import assert_conforms as assert_conforms
from trustclip.constraints.conformance import conform as conform
from trustclip.constraints.loss import coefficient as coefficient
from trustclip.constraints.loss import policy_loss as policy_loss
from trustclip.constraints.registry import as_method as as_method
from trustclip.constraints.registry import interval as interval
from trustclip.constraints.registry import method as method
from trustclip.constraints.registry import penalty as penalty
from trustclip.constraints.rosetta import preset as preset
from trustclip.constraints.rosetta import presets as presets
from trustclip.findings.live.recorder import Recorder as Recorder

__version__: str
