"""`python -m bundle.verify`: the checklist of a MONAI Model Zoo bundle, without a network connection.

Each check is a function that raises if something is wrong; all are run, and the exit code says whether all passed.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser, ConfigWorkflow, ckpt_export, onnx_export, verify_metadata, verify_net_in_out
from monai.utils import optional_import

from bundle.pack import FOLDERS, ROOT, bundle_files, pack, unpack
from scripts.core.checkpoint import load_network, network_state, read
from scripts.synthetic.subjects import synthesize_subject

REQUIRED = (
    "LICENSE",
    "configs/metadata.json",
    "configs/inference.json",
    "configs/train.yaml",
    "configs/evaluate.yaml",
    "configs/multi_gpu_train.yaml",
    "configs/multi_gpu_evaluate.yaml",
    "configs/logging.conf",
    "docs/README.md",
    "docs/data_license.txt",
    "models/model.pt",
    "scripts/__init__.py",
)
_MODULES = {"pickle": ("load", "loads"), "os": ("system", "popen"), "torch.jit": ("load",)}
FORBIDDEN = {"eval", "exec", *(f"{module}.{name}" for module, names in _MODULES.items() for name in names)}
"""Calls that run what a file says. Configs are code by MONAI's design; the docs say so."""
SIZES = ((1, 2, 80, 96, 112), (1, 2, 32, 40, 48))
"""Inputs that an exported network is compared on: the bundle's own at 2 mm, and that of its export, their middle."""


class VerifyError(ValueError):
    """The bundle does not do what a bundle of the zoo has to."""


def check_files() -> None:
    """All files that the zoo asks for are there."""
    if missing := [name for name in REQUIRED if not (ROOT / name).is_file()]:
        raise VerifyError(f"missing: {', '.join(missing)}")


def check_metadata() -> None:
    """metadata.json fits the schema, its version is in its changelog, and the packages are those that are pinned."""
    metadata = json.loads((ROOT / "configs/metadata.json").read_text(encoding="utf-8"))
    # MONAI would download the schema that the file names; a file that is there already it takes instead.
    verify_metadata(meta_file=path_of("configs/metadata.json"), filepath=path_of("bundle/metadata_schema.json"))
    if metadata["version"] not in metadata["changelog"]:
        raise VerifyError(f"version {metadata['version']} is not in the changelog")
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M))
    named = {"monai": "monai_version", "torch": "pytorch_version", "numpy": "numpy_version"}
    stated = {package: metadata[key] for package, key in named.items()} | metadata["required_packages_version"]
    if wrong := [package for package, version in stated.items() if pins.get(package) != version]:
        raise VerifyError(f"not the versions of requirements.txt: {', '.join(wrong)}")


def check_configs() -> None:
    """Every config can be read, and every `_target_` in it is there."""
    for path in [*sorted((ROOT / "configs").rglob("*.yaml")), *sorted((ROOT / "configs").glob("*.json"))]:
        content = json.dumps(ConfigParser.load_config_file(str(path)))
        for target in re.findall(r'"_target_": "([^"]*)"', content):
            module, _, name = target.rpartition(".")
            found, available = optional_import(module, name=name)
            if not available or not callable(found):
                raise VerifyError(f"{path.relative_to(ROOT)}: there is no {target}")


def check_input_and_output() -> None:
    """The network takes and gives tensors of the shapes that metadata.json states."""
    for config in ("train.yaml", "inference.json"):
        verify_net_in_out(
            net_id="network_def",
            meta_file=path_of("configs/metadata.json"),
            config_file=path_of(f"configs/{config}"),
            device="cpu",
            n=2,
            bundle_root=str(ROOT),
        )


def check_weights() -> None:
    """models/model.pt holds finite tensors and nothing else, and fits the network of both configs."""
    state = network_state(read(ROOT / "models/model.pt"))
    if broken := [name for name, value in state.items() if not bool(torch.isfinite(value).all())]:
        raise VerifyError(f"models/model.pt is not finite in {', '.join(broken)}")
    for config in ("train.yaml", "inference.json"):
        load_network(network(config), ROOT / "models/model.pt")


def check_workflows() -> None:
    """MONAI's workflow finds all properties that training and inference have to define."""
    _check_workflow("train.yaml", "train", synthetic={"num_subjects": 14, "shape": [16, 24, 24], "spacing": 9.0})
    _check_workflow("inference.json", "infer")


def check_torchscript() -> None:
    """The network as TorchScript (`ckpt_export`) gives what the network gives."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.ts")
        _export(ckpt_export, path)
        exported = torch.jit.load(path)
        with torch.jit.optimized_execution(False):  # which would take longer than what it saves in two runs
            _compare("TorchScript", lambda pair: exported(pair))


def check_onnx() -> None:
    """The network as ONNX (`onnx_export`) gives what the network gives."""
    runtime, available = optional_import("onnxruntime")
    if not available or not optional_import("onnx")[1]:
        raise VerifyError("onnx and onnxruntime are not installed; they are pinned in requirements.txt")
    axes = {axis: name for axis, name in enumerate(("batch", "", "x", "y", "z")) if name}
    names = {"input_names": ["image"], "output_names": ["pred"], "dynamic_axes": {"image": axes, "pred": axes}}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        _export(onnx_export, path, converter_kwargs={**names, "dynamo": False})
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        _compare("ONNX", lambda pair: torch.from_numpy(session.run(None, {"image": pair.numpy()})[0]))


def check_code() -> None:
    """Nothing in the code runs what a file says, and checkpoints are read as data."""
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for call in (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            where = f"{path.relative_to(ROOT)}, line {call.lineno}"
            if name in FORBIDDEN and path != Path(__file__):
                raise VerifyError(f"{where}: {name}")
            safe = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)
            if name == "torch.load" and not safe:
                raise VerifyError(f"{where}: torch.load without weights_only=True")


def check_pack() -> None:
    """Packed twice, the zip file is the same; unpacked, all files are what they were."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (pack(Path(folder) / name).read_bytes() for name in ("a.zip", "b.zip"))
        if first != second:
            raise VerifyError("packing twice gives two different zip files")
        root = unpack(Path(folder) / "a.zip", Path(folder) / "ünpacked here")
        if bundle_files(root) != bundle_files(ROOT):
            raise VerifyError("the unpacked bundle has other files")


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def path_of(name: str) -> str:
    """A file of the bundle, as MONAI's functions take it."""
    return str(ROOT / name)


def network(config: str) -> torch.nn.Module:
    """The network that a config defines, untrained."""
    parser = ConfigParser()
    parser.read_config(path_of(f"configs/{config}"))
    return parser.get_parsed_content("network_def")


def _check_workflow(config: str, kind: str, **more: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workflow = ConfigWorkflow(
            config_file=path_of(f"configs/{config}"),
            meta_file=path_of("configs/metadata.json"),
            logging_file=False,
            workflow_type=kind,
            bundle_root=str(ROOT),
            output_dir=folder,
            device="$torch.device('cpu')",
            **more,
        )
        workflow.initialize()
        if problems := workflow.check_properties():
            raise VerifyError(f"{config}: {problems}")
        workflow.finalize()


def _export(export: Callable[..., object], path: str, **more: Any) -> None:
    """Have MONAI write the trained network in another format."""
    export(
        net_id="network_def",
        filepath=path,
        ckpt_file=path_of("models/model.pt"),
        config_file=path_of("configs/inference.json"),
        meta_file=path_of("configs/metadata.json"),
        bundle_root=str(ROOT),
        use_trace=True,
        input_shape=list(SIZES[1]),
        **more,
    )


@torch.no_grad()
def _compare(name: str, exported: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Compare an exported network with the one that was exported, on pairs of the built-in brains."""
    eager = network("inference.json").eval()
    load_network(eager, ROOT / "models/model.pt")
    for size in SIZES:
        images = [torch.from_numpy(synthesize_subject(seed, size[2:]).image) for seed in (1, 2)]
        pair = torch.stack(images)[None]  # [1, 2, X, Y, Z]
        expected, got = eager(pair), exported(pair)
        error = float((got - expected).abs().max()) if got.shape == expected.shape else float("inf")
        if error > 1e-4 * float(expected.abs().max()):
            raise VerifyError(f"{name} differs by {error:.3g} from the network on an input of shape {size}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what MONAI and the exporters say on the way."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, or those that are named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bundle.verify", description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], help="all if none is named")
    failed = 0
    for name in parser.parse_args(arguments).checks or CHECKS:
        title = (CHECKS[name].__doc__ or "").splitlines()[0]
        try:
            with _quiet():
                CHECKS[name]()
        except Exception as error:  # whatever MONAI raises, the other checks are still of interest
            failed += 1
            print(f"FAILED  {title}\n        {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        else:
            print(f"passed  {title}")
    print(f"{failed} of the checks failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
