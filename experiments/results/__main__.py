"""`python -m experiments.results`: the tables and figures of docs/results.md and docs/README.md, from docs/results.

    python -m experiments.results                                       make tables and figures
    python -m experiments.results check                                 are the tables what the CSV files give?
    python -m experiments.results add FOLDER --group variants --name s_lc_10l
                                                                   take in an evaluation's folder
    python -m experiments.results training RUN --name s_lc_10l          take in a training's validation.csv
    python -m experiments.results calibration FOLDER                    take in what `run calibration` reported
    python -m experiments.results volumes FOLDER                        take in the volumes of `baselines --samples`

Groups are variants (2 mm, the models of `experiments.comparison`, networks alone), longer (some of them, trained for
three times as many steps), refined (the variants with refinement), shipped (2 mm, models/model.pt: `model` as the
bundle registers files, `network` without refinement), baselines (2 mm, other tools), one_mm (files at 1 mm), timed (the
same on a few pairs, all in one go on one core: for their seconds) and perturbed (the shipped model on disturbed pairs,
named by the disturbance).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from experiments.baselines.samples import VOLUMES_FILE
from experiments.results.pages import PAGES, outdated, update
from experiments.results.result_pictures import draw_all
from experiments.results.store import FOLDER, GROUPS, add
from experiments.results.volumes import FILE
from scripts.core.atomic import write_text
from scripts.evaluation.results import ResultsError


def main(arguments: list[str] | None = None) -> None:
    """Do what was asked for, and say where the results are."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("check", help="exit code 1 if a table is not what the CSV files give")
    adding = commands.add_parser("add", help="take in the folder of an evaluation")
    adding.add_argument("--group", choices=GROUPS, required=True)
    adding.add_argument("--untimed", action="store_true", help="leave its seconds out: they are of another machine")
    adding.add_argument("--merge", action="store_true", help="keep the filed pairs that the folder does not have")
    training = commands.add_parser("training", help="take in a training's validation.csv")
    for command in (adding, training):
        command.add_argument("folder", type=Path)
        command.add_argument("--name", required=True, help="of the files, such as s_lc_10l")
    calibration = commands.add_parser("calibration", help="take in what `run calibration` reported")
    volumes = commands.add_parser("volumes", help="take in the volumes of `experiments.baselines bundle --samples`")
    for command in (calibration, volumes):
        command.add_argument("folder", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "add":
            added = add(chosen.folder, chosen.group, chosen.name, merge=chosen.merge, untimed=chosen.untimed)
            print("\n".join(str(path) for path in added))
        elif chosen.command == "training":
            target = FOLDER / "training" / f"{chosen.name}.csv"
            target.parent.mkdir(parents=True, exist_ok=True)
            print(shutil.copyfile(chosen.folder / "validation.csv", target))
        elif chosen.command == "calibration":
            take_calibration(chosen.folder)
        elif chosen.command == "volumes":
            print(shutil.copyfile(chosen.folder / VOLUMES_FILE, FOLDER / FILE))
        elif chosen.command == "check":
            if pages := outdated():
                sys.exit(
                    f"not what the CSV files give: {', '.join(map(str, pages))}; run python -m experiments.results"
                )
            print("the tables are what the CSV files give")
        else:
            changed, pictures = update(), draw_all()
            unchanged = [page for page in PAGES if page not in changed]
            for word, paths in (("changed", changed), ("as it was", unchanged), ("drawn", pictures)):
                print("\n".join(f"{word}: {path}" for path in paths))
    except (ResultsError, OSError) as error:
        sys.exit(f"error: {error}")


def take_calibration(folder: Path) -> None:
    """Copy a calibration's report, without the path of the weights on somebody's disk."""
    report = json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
    report["weights"] = Path(report["weights"]).name
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_text(FOLDER / "calibration.json", json.dumps(report, indent=1) + "\n")
    print(FOLDER / "calibration.json")


if __name__ == "__main__":
    main()
