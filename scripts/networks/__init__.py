"""Networks that read (moving, fixed) and predict the parameters of a proposal."""

from scripts.networks.backbone import MonaiBackbone, UNetBackbone
from scripts.networks.layout import ProposalLayout
from scripts.networks.proposal import ProposalNetwork

__all__ = ["MonaiBackbone", "ProposalLayout", "ProposalNetwork", "UNetBackbone"]
