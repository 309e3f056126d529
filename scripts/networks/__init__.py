"""Networks that read (moving, fixed) and predict the parameters of a proposal."""

from scripts.networks.backbone import MonaiBackbone, UNetBackbone
from scripts.networks.layout import ProposalLayout
from scripts.networks.proposal import ProposalNetwork
from scripts.networks.weight_scale import WeightScale

__all__ = ["MonaiBackbone", "ProposalLayout", "ProposalNetwork", "UNetBackbone", "WeightScale"]
