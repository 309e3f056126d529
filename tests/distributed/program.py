"""What each of two processes does in the tests of this folder; run by torchrun, or called by the tests as one process.

Every process gets folders of its own to write to, so that the tests see who wrote what.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.bundle import ConfigWorkflow
from monai.engines.utils import IterationEvents

from scripts.core.processes import Processes
from scripts.core.seg35 import SCORED
from scripts.data.datalist import load_datalist
from scripts.data.pairs import PairDataset
from scripts.data.transforms import load_transforms
from scripts.engines.distributed import ProcessError, check_agreement
from scripts.evaluation.evaluator import Evaluation
from scripts.inference.model import Model
from scripts.inference.objectives import SIRObjective
from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone
from scripts.posterior.sampler import Sampler
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target
from tests.commands.conftest import evaluator
from tests.engines.conftest import ROOT, TINY

STEPS = 3
# SOAP's first steps go by the signs of gradients, however small: rounding would be all that is compared.
DESCENT = {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 0.01}


def workflow(folder: Path, configs: tuple[str, ...], **overrides: Any) -> ConfigWorkflow:
    """The shipped training at test size; the same start for everybody."""
    torch.manual_seed(0)
    settings = {**TINY, "epoch_length": STEPS, "num_val_pairs": 2, "output_dir": str(folder), "optimizer": DESCENT}
    settings |= overrides
    out = ConfigWorkflow(
        config_file=[str(ROOT / "configs" / name) for name in ("train.yaml", *configs)],
        meta_file=str(ROOT / "configs/metadata.json"),
        logging_file=False,
        workflow_type="train",
        **settings,
    )
    out.initialize()
    return out


def train(run: ConfigWorkflow) -> dict[str, Any]:
    """Train, and note the gradients of the first step and σ_α after each step."""
    network = run.parser.get_parsed_content("network_def")
    trainer = run.parser.get_parsed_content("train::trainer")
    noted: dict[str, Any] = {"gradients": None, "scales": [], "names": []}

    def note(engine: Any) -> None:
        if noted["gradients"] is None:
            noted["gradients"] = {name: p.grad.clone() for name, p in network.named_parameters()}
        noted["scales"].append(network.weight_scale.value.clone())

    trainer.add_event_handler(IterationEvents.BACKWARD_COMPLETED, note)
    trainer.run()
    noted["weights"] = {name: value.clone() for name, value in network.state_dict().items()}
    noted["best"] = trainer.state.best_validation
    return noted


def evaluate(folder: Path) -> dict[str, Any]:
    """Evaluate an untrained network on 3 pairs, which do not go round among two processes."""
    torch.manual_seed(0)
    layout = ProposalLayout(rank=3)
    network = ProposalNetwork(layout, UNetBackbone((4, 4, 4)))
    cohort = {"num_subjects": 3, "shape": [24, 24, 32], "spacing": 7.0}
    subjects = load_datalist(None, "all", synthetic=cohort)
    dataset = PairDataset(subjects, load_transforms(), [(0, 1), (1, 2), (2, 0)])
    few = {"num_proposals": 6, "num_samples": 4, "temperature": 0.5, "progress": False}
    model = Model(network, SIRObjective(Target(NCCLikelihood(3)), layout), 7.0)
    run = Evaluation(Sampler(model, few), dataset, SCORED, folder, progress=False, figures=False)
    return run.run()


def register(folder: Path, pairs: str, weights: str) -> list[str]:
    """Register a list of pairs, one of which is broken; the names of those that were done."""
    run = evaluator(folder, weights, pairs=pairs, num_modes=0)
    with pytest.raises(SystemExit, match="1"):
        run.run()
    return [row["name"] for row in run.finished]


def talk() -> dict[str, Any]:
    """What processes tell each other."""
    processes = Processes.current()
    told = {
        "texts": processes.gather("é" * processes.rank),
        "first": processes.from_first(f"of {processes.rank}"),
        "mean": processes.mean(torch.tensor([1.0, 3.0]) * processes.rank).tolist(),
        "share": list(processes.share(5)),
    }
    try:
        check_agreement("their number", processes.rank, "count again")
    except ProcessError as error:
        told["disagreement"] = str(error)
    return told


def main(folder: Path, pairs: str, weights: str) -> None:
    """Everything, with a note of it in `noted_<rank>.pt`."""
    run = workflow(folder / "training_0", ("multi_gpu_train.yaml",))
    rank = Processes.current().rank
    run.parser["output_dir"] = str(folder / f"training_{rank}")
    noted = {"training": train(run), "talk": talk()}
    noted["summary"] = json.dumps(evaluate(folder / f"evaluation_{rank}"), sort_keys=True, default=float)
    noted["registered"] = register(folder / f"registration_{rank}", pairs, weights)
    torch.save(noted, folder / f"noted_{rank}.pt")
    run.finalize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
