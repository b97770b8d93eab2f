"""The public names, each with the module that it is in."""

from trustclip.engines.verl.loss import TrustclipLossConfig as TrustclipLossConfig
