"""`python -m experiments.slicer_pictures RESULT --fixed fixed.nii.gz --moving moving.nii.gz`: what to see in 3D Slicer.

Draws the pictures of docs/slicer.md from the files of a result, read by SimpleITK as Slicer reads them. Those in the
docs are of the built-in example, which is synthetic:

    python -m monai.bundle run inference --config_file configs/inference.json --output_dir output/slicer
    python -m monai.bundle run apply --config_file configs/apply.json --transforms true \\
        --posterior output/slicer/brain_B__to__brain_A/posterior.pt
    python -m experiments.slicer_pictures output/slicer/brain_B__to__brain_A \\
        --fixed output/slicer/example/brain_A.nii.gz --moving output/slicer/example/brain_B.nii.gz
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import SimpleITK as sitk  # noqa: N813
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import binary_erosion

Slice = np.ndarray
LINES_MM = 6.0
"""Between the lines of a drawn grid."""
SAMPLES = 3
WINDOW_MM = 30
MAGNIFIED = 10


class Scene:
    """The files of a result, cut at one axial plane of the fixed image.

    Args:
        folder: of the result.
        fixed: path of the fixed image.
        moving: path of the moving image.
    """

    def __init__(self, folder: Path, fixed: Path, moving: Path) -> None:
        self.folder = folder
        self.fixed, self.moving = _read(fixed), _read(moving)
        low, high = _bounds(self.fixed)
        self.low, self.high = low, high
        self.height = float((low[2] + high[2]) / 2)

    def plane(self, image: sitk.Image, transform: sitk.Transform | None = None, nearest: bool = False) -> Slice:
        """An image in the plane, [rows, columns] with anterior on top and the patient's right on the left, 1 mm."""
        size = [int(self.high[0] - self.low[0]), int(self.high[1] - self.low[1]), 1]
        grid = sitk.Image(size, sitk.sitkFloat32)
        grid.SetOrigin((float(self.low[0]), float(self.low[1]), self.height))
        how = sitk.sitkNearestNeighbor if nearest else sitk.sitkLinear
        return sitk.GetArrayFromImage(sitk.Resample(image, grid, transform or sitk.Transform(), how, 0.0))[0]

    def moved(self, transform: sitk.Transform) -> Slice:
        """Where the points of the plane go, [rows, columns, 3], LPS mm."""
        columns = np.arange(self.low[0], self.high[0], 1.0)
        rows = np.arange(self.low[1], self.high[1], 1.0)
        return np.array([[transform.TransformPoint((x, y, self.height)) for x in columns] for y in rows])


def draw(scene: Scene) -> dict[str, Figure]:
    """The pictures by name."""
    figures = {"slicer_warped": _panels(scene, [_fixed, _moving, _warped])}
    figures["slicer_overlays"] = _panels(scene, [_uncertainty, _labels, _grid])
    if (scene.folder / "transforms" / "weights.csv").is_file():
        figures["slicer_samples"] = _samples(scene)
    return figures


def _panels(scene: Scene, parts: Sequence[Callable[[Scene, Axes], None]]) -> Figure:
    figure = Figure(figsize=(3.4 * len(parts), 4.2), layout="constrained", facecolor="black")
    for number, part in enumerate(parts, start=1):
        axes = figure.add_subplot(1, len(parts), number)
        axes.set_axis_off()
        part(scene, axes)
    return figure


def _show(axes: Axes, values: Slice, title: str) -> None:
    axes.imshow(values, cmap="gray", vmin=0, vmax=max(float(np.percentile(values, 99.8)), 1e-6))
    axes.set_title(title, color="white", fontsize=10)


def _fixed(scene: Scene, axes: Axes) -> None:
    _show(axes, scene.plane(scene.fixed), "fixed")


def _moving(scene: Scene, axes: Axes) -> None:
    _show(axes, scene.plane(scene.moving), "moving")


def _warped(scene: Scene, axes: Axes) -> None:
    transform = sitk.ReadTransform(str(scene.folder / "transform.h5"))
    _show(axes, scene.plane(scene.moving, transform), "moving under transform.h5, hardened")


def _uncertainty(scene: Scene, axes: Axes) -> None:
    _show(axes, scene.plane(scene.fixed), "uncertainty_std.nii.gz over fixed (mm)")
    std = sitk.ReadImage(str(scene.folder / "uncertainty_std.nii.gz"), sitk.sitkFloat32)
    length = scene.plane(std[:, :, :, 0] if std.GetDimension() == 4 else std)
    image = axes.imshow(length, cmap="inferno", alpha=0.55, vmin=0, vmax=float(np.percentile(length, 99.5)))
    bar = axes.figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.7, pad=0.02)
    bar.ax.tick_params(colors="white", labelsize=8)


def _labels(scene: Scene, axes: Axes) -> None:
    _show(axes, scene.plane(scene.fixed), "labels.nii.gz with labels.ctbl")
    labels = scene.plane(_read(scene.folder / "labels.nii.gz"), nearest=True).astype(int)
    colors = read_color_table(scene.folder / "labels.ctbl")
    painted = np.zeros((*labels.shape, 4))
    for value, (_, color) in colors.items():
        painted[labels == value] = np.array(color) / 255
    painted[..., 3] *= 0.5
    axes.imshow(painted)


def _grid(scene: Scene, axes: Axes) -> None:
    _show(axes, scene.plane(scene.fixed), "displacement.nii.gz as a grid")
    field = sitk.ReadImage(str(scene.folder / "displacement.nii.gz"), sitk.sitkVectorFloat64)
    places = scene.moved(sitk.DisplacementFieldTransform(field))[..., :2] - scene.low[:2]
    _lines(axes, places, "#ffd24d", 0.8)


def _lines(axes: Axes, places: np.ndarray, color: object, opacity: float) -> None:
    """Lines through places [rows, columns, 2], mm from the plane's corner."""
    step = int(LINES_MM)
    for line in (*places[::step], *places[:, ::step].transpose(1, 0, 2)):
        axes.plot(line[:, 0], line[:, 1], color=color, alpha=opacity, linewidth=0.7)


def _samples(scene: Scene) -> Figure:
    """The samples of largest weight where they differ most: each its warped image, and their grids in one picture."""
    with (scene.folder / "transforms" / "weights.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: -float(row["weight"]))[:SAMPLES]
    transforms = [sitk.ReadTransform(str(scene.folder / "transforms" / row["file"])) for row in rows]
    places = np.stack([scene.moved(transform)[..., :2] for transform in transforms]) - scene.low[:2]
    mean = places.mean(axis=0)
    brain = binary_erosion(scene.plane(scene.fixed) > 0, iterations=WINDOW_MM // 2)  # rather inside than at the edge
    spread = np.linalg.norm(places - mean, axis=-1).max(axis=0)[: brain.shape[0], : brain.shape[1]]
    row, column = (int(part) for part in np.unravel_index(int(np.where(brain, spread, 0).argmax()), spread.shape))
    figure = Figure(figsize=(3.4 * (len(rows) + 1), 3.9), layout="constrained", facecolor="black")
    cycle = matplotlib.colormaps["Set1"].colors  # type: ignore[attr-defined]
    for number in range(len(rows) + 1):
        axes = figure.add_subplot(1, len(rows) + 1, number + 1)
        axes.set_axis_off()
        if number < len(rows):
            title = f"{rows[number]['file']}, weight {float(rows[number]['weight']):.3f}"
            _show(axes, scene.plane(scene.moving, transforms[number]), title)
        else:
            _show(axes, scene.plane(scene.fixed), f"their grids, differences {MAGNIFIED} times as large")
            for sample, color in zip(places, cycle, strict=False):
                _lines(axes, mean + MAGNIFIED * (sample - mean), color, 0.9)
        axes.set_xlim(column - WINDOW_MM, column + WINDOW_MM)
        axes.set_ylim(row + WINDOW_MM, row - WINDOW_MM)
    return figure


def read_color_table(path: Path) -> dict[int, tuple[str, tuple[int, int, int, int]]]:
    """Number to name and color of a `.ctbl` file, as Slicer understands it."""
    table = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            number, name, red, green, blue, opacity = line.split()
            table[int(number)] = (name.replace("_", " "), (int(red), int(green), int(blue), int(opacity)))
    return table


def _read(path: Path) -> sitk.Image:
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: is this the folder of a result, with labels?")
    return sitk.ReadImage(str(path), sitk.sitkFloat32)


def _bounds(image: sitk.Image) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the box around an image, LPS mm, two times (3,)."""
    size = image.GetSize()
    corners = [
        image.TransformIndexToPhysicalPoint((x, y, z))
        for x in (0, size[0] - 1)
        for y in (0, size[1] - 1)
        for z in (0, size[2] - 1)
    ]
    return np.min(corners, axis=0), np.max(corners, axis=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the pictures and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.slicer_pictures", description="Pictures of docs/slicer.md."
    )
    parser.add_argument("result", type=Path, help="folder of a result of run inference")
    parser.add_argument("--fixed", type=Path, required=True, help="the fixed image")
    parser.add_argument("--moving", type=Path, required=True, help="the moving image")
    parser.add_argument("--output_dir", type=Path, default=Path("docs/images"), help="where the pictures go")
    options = parser.parse_args(arguments)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for name, figure in draw(Scene(options.result, options.fixed, options.moving)).items():
        figure.savefig(options.output_dir / f"{name}.png", dpi=110, facecolor=figure.get_facecolor())
        print(options.output_dir / f"{name}.png")


if __name__ == "__main__":
    main()
