"""The real MONAI Label server on loopback, and the client of its Slicer module.

These tests run with the Python of the environment that `make test-monailabel` makes.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from scripts.synthetic.subjects import synthesize_subject
from tests.commands.conftest import ROOT

START_SECONDS = 600
# A torch without CUDA cannot load torchvision's compiled operators, and torchvision then fails to describe them.
SHIM = """
import torch
_library = torch.library.Library("torchvision", "DEF")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def write_scan(folder: Path, name: str, seed: int, spacing: float, label_folder: Path | None = None) -> Path:
    """A synthetic brain as a file, its labels beside it."""
    shape = tuple(int(size / spacing) for size in (160, 192, 224))
    subject = synthesize_subject(seed=seed, shape=shape, spacing=spacing)
    nib.save(nib.Nifti1Image(subject.image, subject.affine), folder / f"{name}.nii.gz")
    if label_folder is not None:
        label_folder.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(subject.label.astype(np.int16), subject.affine), label_folder / f"{name}.nii.gz")
    return folder / f"{name}.nii.gz"


def run_inference(output_dir: Path, environment: dict[str, str], **settings: Any) -> Path:
    """`run inference` by its command; the folder of the only result."""
    command = [sys.executable, "-m", "monai.bundle", "run", "inference", "--bundle_root", str(ROOT)]
    command += ["--config_file", str(ROOT / "configs/inference.json"), "--output_dir", str(output_dir)]
    for key, value in {"report": False, **settings}.items():
        command += [f"--{key}", str(value)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=output_dir.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    return next(output_dir.glob("*__to__*"))


class Server:
    """A running server; to be stopped."""

    def __init__(self, app: Path, studies: Path, log: Path, environment: dict[str, str], *conf: tuple[str, str]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log_file = f"http://127.0.0.1:{port}", log
        # What the command `monailabel` runs; that is a shell script which takes paths with blanks apart, and which puts
        # the folder above its environment on the path, here this repository.
        command = [sys.executable, "-m", "monailabel.main", "start_server", "--app", str(app)]
        command += ["--studies", str(studies), "--host", "127.0.0.1", "--port", str(port)]
        for key, value in conf:
            command += ["--conf", key, value]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, cwd=studies.parent)

    def wait(self, client: Any) -> dict[str, Any]:
        """What /info/ says, once the server is up."""
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                break
            try:
                return client.info()
            except OSError:
                time.sleep(1)
        pytest.fail(f"the server did not start:\n{self.log[-5000:]}")

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """For all that these tests start: nothing on the path, uploads into a folder of the test's own."""
    folder = tmp_path_factory.mktemp("environment")
    # The command `monailabel` takes the first python on the path, as in an environment that was activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    sessions = str(folder / "sessions")
    found = {**os.environ, "PATH": path, "PYTHONPATH": "", "MONAI_LABEL_SESSION_PATH": sessions}
    works = subprocess.run([sys.executable, "-c", "import torchvision"], env=found, capture_output=True, check=False)
    if works.returncode:
        (folder / "sitecustomize.py").write_text(SHIM)
        found["PYTHONPATH"] = str(folder)
    return found


@pytest.fixture(scope="session")
def slicer_client() -> Any:
    """The client class that MONAI Label's Slicer module brings along."""
    place = Path(sys.prefix) / "monailabel/plugins/slicer/MONAILabel/MONAILabelLib/client.py"
    spec = importlib.util.spec_from_file_location("slicer_client", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MONAILabelClient
