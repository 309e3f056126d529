"""`python -m bundle.describe`: writes into files of weights of earlier versions what these mean.

    python -m bundle.describe output/training/last.pt output/training/model.pt \
        --config_file "['configs/train.yaml','configs/variants/v_lc.yaml']"

The configs are those of the training; what its command line said beside them comes in one more file. A temperature that
was fitted to the weights stays with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from monai.bundle import ConfigParser

from scripts.commands.one_line import one_line_errors
from scripts.core.checkpoint import beside_weights, description_of, read
from scripts.core.errors import DataError
from scripts.inference.model import Fitted, Model
from scripts.inference.model_file import check_description, load_model

PARTS = ("voxel_mm", "network", "target", "objective")


def main(arguments: Sequence[str] | None = None) -> None:
    """Describe each file."""
    parser = argparse.ArgumentParser(prog="python -m bundle.describe", description=__doc__.split("\n")[0])
    parser.add_argument("weights", nargs="+", type=Path)
    parser.add_argument("--config_file", required=True, help="of the training, as monai.bundle takes them")
    parser.add_argument("--temperature", type=float, help="T that was fitted, if the file does not have it")
    parser.add_argument("--notes", type=yaml.safe_load, help='on what it was fitted, such as "{pairs: 6}"')
    parser.add_argument("--output", type=Path, help="folder to write to; by default the files are replaced")
    chosen = parser.parse_args(arguments)
    with one_line_errors():
        config = ConfigParser()
        config.read_config(yaml.safe_load(chosen.config_file))
        model = config.get_parsed_content("model")
        for path in chosen.weights:
            output = path if chosen.output is None else chosen.output / path.name
            print(f"{path}: {describe(path, model, output, chosen.temperature, chosen.notes or {})}")


def describe(
    path: Path, expected: Model, output: Path, temperature: float | None = None, notes: Mapping[str, Any] | None = None
) -> str:
    """Write a file with what its weights mean.

    Args:
        expected: the model of the training's configs.

    Returns:
        What was done.

    Raises:
        DataError: for a file that says something else already.
        CheckpointError: for one that is not of this model.
    """
    content = read(path)
    check_description(content, expected, path, PARTS)
    if description_of(content) is not None:
        return "says so already"
    model = load_model(path, expected=expected)
    if temperature is not None:
        if model.fitted is not None:
            raise DataError(f"--temperature {temperature}: the weights {path} have {model.fitted.temperature}")
        model.fitted = Fitted(temperature, model.weighting().scale)
    if notes and model.fitted is not None:
        model.fitted = replace(model.fitted, notes=dict(notes))
    model.save(output, **beside_weights(content))
    return f"described in {output}"


if __name__ == "__main__":
    main()
