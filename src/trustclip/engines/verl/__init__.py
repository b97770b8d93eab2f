"""verl: a policy loss for any method, through verl's own registry; see `loss`.

`TrustclipLossConfig` is what ``policy_loss._target_`` names in verl's configuration. verl is
imported with the loss alone: the checks of a configuration do without it.
"""

from trustclip.support.lazy import public

__all__, __getattr__, __dir__ = public(__name__)
