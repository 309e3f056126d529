"""The app of this bundle in the real server: any two images, and every answer in the datastore."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from scripts.commands.apply import Application
from scripts.core.errors import DataError
from tests.bundle.monailabel.conftest import Server, run_inference, write_scan
from tests.commands.conftest import ROOT, SPACING, weights

__all__ = ["weights"]
pytestmark = pytest.mark.monailabel

FEW = {"num_proposals": 8, "num_samples": 4, "seed": 5, "align": "none"}

POINT = {"fixed": [20.0, -10.0, 5.0], "moving": [23.0, -8.0, 4.0]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own app é x")
    (folder / "studies").mkdir()
    for name, seed in (("ann", 11), ("bob", 12), ("cid", 13)):
        labels = None if name == "cid" else folder / "studies/labels/final"
        write_scan(folder / "studies", name, seed, SPACING, labels)
    return folder


@pytest.fixture(scope="module")
def server(place, environment, slicer_client, weights):
    conf = [("report", "false"), ("overrides", json.dumps({"ckpt_path": weights}))]
    server = Server(ROOT / "bundle/monailabel", place / "studies", place / "server.log", environment, *conf)
    server.client = slicer_client(server.url, tmpdir=str(place))
    server.info = server.wait(server.client)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def expected(place, environment, weights):
    studies = place / "studies"
    files = {"fixed": studies / "ann.nii.gz", "moving": studies / "bob.nii.gz"}
    files["moving_label"] = studies / "labels/final/bob.nii.gz"
    return run_inference(place / "expected", environment, **files, **FEW, ckpt_path=weights)


def ask(server, model, image="ann", moving="bob", **params):
    return server.client.infer(model, image, {"moving": moving, **FEW, **params})


def voxels(path):
    return nib.load(path).get_fdata()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"voxel_mm": 2.0}', "unknown option --voxel_mm"),
        ('{"refine_step": 2}', "did you mean --refine_steps"),
        ("refine_steps=2", "must be a JSON object of settings, got refine_steps=2"),
        ("[1]", "must be a JSON object"),
    ],
)
def test_overrides_that_nothing_uses_are_refused(text, words):
    from bundle.monailabel.options import read_overrides  # needs the server's packages

    with pytest.raises(DataError, match=words) as refused:
        read_overrides(text)
    assert str(refused.value).startswith("--conf overrides")
    assert "\n" not in str(refused.value)
    assert read_overrides('{"sampler::settings::chunk": 4}') == {"sampler::settings::chunk": 4}


def test_info_lists_the_tasks_and_the_images(server):
    models = server.info["models"]
    assert set(models) == {"propagate_labels", "condition", "register", "uncertainty", "transform", "mode"}
    assert models["propagate_labels"]["type"] == "segmentation"
    assert models["propagate_labels"]["labels"]["Left-Hippocampus"] == 14
    assert models["register"]["config"]["moving"] == ["ann", "bob", "cid"]


def test_propagated_labels_are_those_of_run_inference_and_are_saved(server, expected, place):
    file, figures = ask(server, "propagate_labels")
    assert np.array_equal(voxels(file), voxels(expected / "labels.nii.gz"))
    diagnostics = json.loads((expected / "diagnostics.json").read_text())
    assert {key: figures[key] for key in ("ess", "khat", "judgement")} == {
        key: diagnostics[key] for key in ("ess", "khat", "judgement")
    }
    assert figures["label_names"]["Left-Hippocampus"] == 14
    tag = figures["saved"]["tag"]
    assert tag == "propagate_labels_from_bob"
    assert server.client.datastore()["objects"]["ann"]["labels"][tag]["info"]["model"] == "propagate_labels"
    assert np.array_equal(voxels(server.client.download_label("ann", tag)), voxels(file))
    assert (place / "studies" / figures["saved"]["folder"] / "posterior.pt").is_file()
    assert "proposals: 4 of 4" in server.log  # as many as are kept
    assert "bob to ann: done in" in server.log


def test_the_other_answers_of_the_same_registration(server, expected, place):
    warped, _ = ask(server, "register")
    np.testing.assert_allclose(voxels(warped), voxels(expected / "warped.nii.gz"), atol=1e-6)
    std, _ = ask(server, "uncertainty")
    np.testing.assert_allclose(voxels(std), voxels(expected / "uncertainty_std.nii.gz")[..., 0], atol=1e-6)
    mode, _ = ask(server, "mode", mode=1)
    np.testing.assert_allclose(voxels(mode), voxels(expected / "modes/mode1_warped.nii.gz"), atol=1e-6)
    assert server.log.count("registered before") >= 3
    for form in ("h5", "nii.gz"):
        file, _ = ask(server, "transform", format=form)
        assert file.endswith(form)
        if form == "h5":
            transform = sitk.ReadTransform(file)
        else:
            transform = sitk.DisplacementFieldTransform(sitk.ReadImage(file, sitk.sitkVectorFloat64))
        fixed, moving = (sitk.ReadImage(str(place / f"studies/{name}.nii.gz")) for name in ("ann", "bob"))
        again = sitk.GetArrayFromImage(sitk.Resample(moving, fixed, transform, sitk.sitkLinear, 0.0))
        ours = sitk.GetArrayFromImage(sitk.ReadImage(str(expected / "warped.nii.gz")))
        assert np.abs(again - ours).mean() < 1e-3


def test_itk_reads_labels_and_transforms_as_slicer_does(server, expected, place):
    import itk

    labels, _ = ask(server, "propagate_labels")
    found, scan = itk.imread(labels), itk.imread(str(place / "studies/ann.nii.gz"))
    np.testing.assert_allclose(itk.array_from_matrix(found.GetDirection()), itk.array_from_matrix(scan.GetDirection()))
    np.testing.assert_allclose(list(found.GetOrigin()), list(scan.GetOrigin()), atol=1e-4)
    file, _ = ask(server, "transform")
    (composite,) = itk.transformread(file)
    field = itk.imread(str(expected / "displacement.nii.gz"))
    for index in ([5, 12, 20], [13, 16, 18], [20, 10, 9]):
        point = np.array(field.TransformIndexToPhysicalPoint(index))
        moved = np.array(composite.TransformPoint(point.tolist()))
        vector = np.array([field.GetPixel(index)[axis] for axis in range(3)])
        np.testing.assert_allclose(moved - point, vector, atol=2e-3)


def test_an_uploaded_image_is_registered_and_not_stored(server, expected, place):
    session = server.client.create_session(str(place / "studies/ann.nii.gz"))["session_id"]
    file, figures = server.client.infer("propagate_labels", "", {"moving": "bob", **FEW}, session_id=session)
    assert np.array_equal(voxels(file), voxels(expected / "labels.nii.gz"))
    assert "saved" not in figures


def test_several_requests_at_once_all_come_back_right(server, expected):
    jobs = [("ann", "bob", 5), ("bob", "ann", 5), ("ann", "bob", 6), ("cid", "bob", 5)]

    def work(job):
        fixed, moving, seed = job
        return ask(server, "propagate_labels", fixed, moving, seed=seed)

    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(work, jobs))
    for job, (file, figures) in zip(jobs, together, strict=True):
        assert (figures["fixed"], figures["moving"], figures["seed"]) == job
        alone, _ = work(job)
        assert np.array_equal(voxels(file), voxels(alone)), job
    assert np.array_equal(voxels(together[0][0]), voxels(expected / "labels.nii.gz"))


@pytest.mark.parametrize(
    ("model", "image", "params", "status", "words"),
    [
        ("register", "dan", {}, 404, "no fixed image 'dan'"),
        ("register", "ann", {"moving": "dan"}, 404, "no moving image 'dan'"),
        ("register", "ann", {"moving": "ann"}, 400, "the same image"),
        ("register", "ann", {"moving": ""}, 400, "no moving image is named"),
        ("register", "/etc/hostname", {}, 403, "outside of the studies folder"),
        ("register", "ann", {"moving": "../secret.nii.gz"}, 403, "outside of the studies folder"),
        ("register", "ann", {"image": "/etc/hostname"}, 403, "outside of the studies folder"),
        ("register", "ann", {"image": "/etc/hostname", "session": {"image": "/etc/hostname"}}, 403, "uploaded"),
        ("register", "ann", {"num_proposals": 1}, 400, "num_proposals must be in 2..100000"),
        ("register", "ann", {"seed": "one"}, 400, "seed must be a whole number"),
        ("register", "ann", {"align": "elastic"}, 400, "align must be one of auto"),
        ("register", "ann", {"num_proposal": 8}, 400, "unknown option num_proposal"),
        ("register", "ann", {"device": "abacus"}, 400, "device must be cpu or cuda"),
        ("register", "ann", {"label_tag": "../../out"}, 400, "the tag '../../out' cannot be used"),
        ("propagate_labels", "ann", {"moving": "cid"}, 404, "cid has no labels with the tag 'final'"),
        ("condition", "ann", {}, 400, "nothing to take in"),
        ("condition", "ann", {"landmarks": [{"fixed": [1, 2]}]}, 400, "point 1 must have fixed and moving"),
        ("condition", "ann", {"corrected_tag": "mine"}, 404, "no labels with the tag 'mine'"),
        ("condition", "ann", {"landmarks": [POINT], "landmark_std": 0}, 400, "positive number of mm"),
        ("condition", "ann", {"landmarks": [{**POINT, "fixed": [999, 0, 0]}]}, 422, "lie outside"),
        ("mode", "ann", {"mode": 9}, 404, "there is no mode 9"),
        ("segment", "ann", {}, 404, "there is no model 'segment'"),
    ],
)
def test_wrong_requests_get_a_status_and_a_line(server, model, image, params, status, words):
    import requests

    fields = {"params": json.dumps({"moving": "bob", **FEW, **params})}
    answer = requests.post(f"{server.url}/infer/{model}", params={"image": image}, data=fields, timeout=600)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


def test_a_tag_that_cannot_be_used_is_refused_before_the_registration(server, place):
    import requests

    def results():
        return sorted((place / "studies").rglob("posterior.pt"))

    before = results()
    fields = {"params": json.dumps({"moving": "bob", **FEW, "seed": 4711, "label_tag": "../../out"})}
    answer = requests.post(f"{server.url}/infer/register", params={"image": "ann"}, data=fields, timeout=600)
    assert answer.status_code == 400, answer.text
    assert results() == before


def test_files_that_cannot_be_registered_are_refused_with_the_reason(server, place):
    import requests

    (place / "dot.nii.gz").write_bytes(b"no image")
    server.client.upload_image(str(place / "dot.nii.gz"), "broken")
    fields = {"params": json.dumps({"moving": "broken", **FEW})}
    answer = requests.post(f"{server.url}/infer/register", params={"image": "ann"}, data=fields, timeout=600)
    assert answer.status_code == 422
    assert "broken.nii.gz" in answer.json()["detail"]


def test_the_datastore_refuses_what_leads_out_of_it(server, place):
    import requests

    with (place / "studies/ann.nii.gz").open("rb") as file:
        answer = requests.put(
            f"{server.url}/datastore/label",
            params={"image": "ann", "tag": "../../out"},
            files={"label": file},
            timeout=60,
        )
        assert answer.status_code == 400
    with (place / "studies/ann.nii.gz").open("rb") as file:
        answer = requests.put(
            f"{server.url}/datastore/image", params={"image": "../out"}, files={"file": file}, timeout=60
        )
        assert answer.status_code == 400
    assert not list(place.glob("out*"))
    assert requests.post(f"{server.url}/activelearning/best", json={}, timeout=60).status_code == 404


def test_an_experts_points_are_taken_in(server, place, environment, expected):
    file, figures = ask(server, "condition", landmarks=[POINT], landmark_std=0.1, output="transform")
    assert figures["saved"]["tag"] == "condition_from_bob"
    before, after = (sitk.ReadTransform(str(path)) for path in (expected / "transform.h5", file))
    flip = np.array([-1, -1, 1])  # from the points' RAS to ITK's LPS
    fixed, moving = (flip * np.array(POINT[role]) for role in ("fixed", "moving"))
    errors = [np.linalg.norm(np.array(way.TransformPoint(fixed)) - moving) for way in (before, after)]
    assert errors[1] < 0.5 * errors[0]
    labels, again = ask(server, "condition", landmarks=[POINT], landmark_std=0.1)
    folder = place / "studies" / again["saved"]["folder"]
    assert np.array_equal(voxels(labels), voxels(folder / "labels.nii.gz"))
    assert len(again["volumes"]) == len(again["label_names"]) > 20
    assert again["judgement"]


def test_a_corrected_label_map_is_taken_in_as_by_run_apply(server, place):
    """The expert says that the left hippocampus is where it is in the scan itself."""
    file, figures = ask(server, "propagate_labels")
    registration = place / "studies" / figures["saved"]["folder"]
    own, found, structure = voxels(place / "studies/labels/final/ann.nii.gz"), voxels(file), 14
    corrected = np.where(found == structure, 0, found)
    corrected[own == structure] = structure
    grid = nib.load(place / "studies/ann.nii.gz").affine
    nib.save(nib.Nifti1Image(corrected.astype(np.int16), grid), place / "corrected.nii.gz")
    server.client.save_label("ann", str(place / "corrected.nii.gz"), tag="corrected")
    params = {"corrected_tag": "corrected", "corrected_structures": str(structure), "outline_std": 0.2}
    labels, _ = ask(server, "condition", **params)
    std, _ = ask(server, "condition", output="uncertainty", **params)
    before = voxels(registration / "uncertainty_std.nii.gz")[..., 0]
    assert np.abs(voxels(std) - before)[own == structure].max() > 0.01
    again = place / "by run apply"
    Application(
        str(registration / "posterior.pt"), corrected_label=str(place / "corrected.nii.gz"), outline_std=0.2,
        corrected_structures=structure, output_dir=str(again), report=False, progress=False, debug=True,
    ).run()  # fmt: skip
    assert np.array_equal(voxels(labels), voxels(again / "labels.nii.gz"))
    np.testing.assert_allclose(voxels(std), voxels(again / "uncertainty_std.nii.gz")[..., 0], atol=1e-6)


def test_final_labels_close_the_loop(server):
    file, _ = ask(server, "propagate_labels", "cid", "bob")
    before = server.client.info()["datastore"]["completed"]
    server.client.save_label("cid", file, tag="final")
    assert server.client.info()["datastore"]["completed"] == before + 1
    answered, _ = ask(server, "propagate_labels", "ann", "cid")
    assert voxels(answered).max() > 30
