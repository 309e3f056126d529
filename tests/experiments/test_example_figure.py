"""An Oracle and two modes: picked by hand-made numbers, through the CSV file, and from synthetic brains."""

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from PIL import Image

from experiments.example_figure import COLUMNS, draw, main, read, write
from experiments.example_pairs import Example, Sample, build, pick, principal_coordinates, valley
from experiments.results.result_pictures import draw_all, links
from experiments.synthesize import write_cohort
from scripts.posterior.modes import find_modes
from tests.engines.conftest import ROOT

CONFIGS = ["configs/train.yaml", "configs/evaluate.yaml"]
SMALL = """
rank: 3
posterior_temperature: 0.5
network_def:
  _target_: scripts.networks.ProposalNetwork
  layout: '@layout'
  mean_gain: 1.0
  backbone: {_target_: scripts.networks.UNetBackbone, channels: [4, 4, 4]}
"""


def example(pair=0, mean=0.70, dice=(0.69, 0.72), **changes):
    """A pair with samples of equal weight, the second of which is a mode of its own."""
    samples = tuple(
        Sample(1 / len(dice), -0.5 * k, value, int(k == 1), 0.3 * (-1) ** k, 0.1 * k) for k, value in enumerate(dice)
    )
    made = Example(pair, 1, 0, 0.65, mean, 0, 0.5, 0.5, 0.05, samples)
    return made._replace(**changes)


class TestPick:
    def test_the_oracle_that_gains_most_need_not_be_the_best(self):
        pairs = [example(0, 0.70, (0.69, 0.72)), example(1, 0.60, (0.55, 0.65)), example(2, 0.80, (0.79, 0.82))]
        assert pairs[1].gain == pytest.approx(0.05)
        picked = pick(pairs)["oracle"]
        assert (picked.pair, picked.pairs, picked.pairs_with_modes) == (1, 3, 0)

    def test_two_modes_come_before_a_deeper_valley_that_means_nothing(self):
        pairs = [
            example(0, dip=0.2, valley_p_value=0.3),  # few samples
            example(1, distinct=1, p_value=0.01, valley_p_value=0.02, dip=0.06),
            example(2, distinct=1, p_value=0.01, valley_p_value=0.02, dip=0.07),
        ]
        picked = pick(pairs)["modes"]
        assert (picked.pair, picked.pairs_with_modes) == (2, 2)

    def test_without_modes_the_most_separated_pair(self):
        pairs = [example(0, valley_p_value=0.4), example(1, valley_p_value=0.1), example(2, valley_p_value=0.4)]
        assert pick(pairs)["modes"].pair == 1


class TestCoordinates:
    @staticmethod
    def weighted_samples():
        rng = np.random.default_rng(0)
        fields = rng.normal(size=(12, 3, 2, 2, 5)) + 4
        fields[:5, 0] += 6
        share = rng.uniform(0.5, 2, 12)
        return torch.from_numpy(fields).float(), share / share.sum()

    def test_as_a_dense_pca(self):
        fields, share = self.weighted_samples()
        flat = fields.flatten(1).double().numpy()
        centered = flat - share @ flat
        _, _, directions = np.linalg.svd(np.sqrt(share)[:, None] * centered, full_matrices=False)
        expected = centered @ directions[:3].T / 60**0.5
        places = principal_coordinates(fields, share, 3)
        assert np.abs(places) == pytest.approx(np.abs(expected), rel=1e-3, abs=1e-4)
        # All components together keep distances from the mean, as root mean squares.
        whole = principal_coordinates(fields, share, 11)
        assert np.linalg.norm(whole, axis=1) == pytest.approx((centered**2).mean(1) ** 0.5, rel=1e-4)

    def test_fewer_samples_than_components(self):
        fields = torch.tensor([[1.0, 0, 0, 0], [3.0, 0, 0, 0]])
        places = principal_coordinates(fields, np.array([0.5, 0.5]))
        assert places.shape == (2, 5)
        assert np.abs(places[:, 0]) == pytest.approx([0.5, 0.5])  # 1 in one of four numbers
        assert not places[:, 1:].any()
        assert principal_coordinates(fields[:1], np.ones(1)).tolist() == [[0.0] * 5]

    def test_two_heaps_have_the_deepest_valley_and_one_mode_has_none(self):
        fields, share = self.weighted_samples()
        places = principal_coordinates(fields, share)
        heaps = np.where(np.arange(12) < 5, 0, 1)
        assert valley(np.repeat([[0.0, 0], [1.0, 0]], [5, 7], axis=0), np.full(12, 1 / 12), heaps) > 0.2
        assert valley(places, share, np.zeros(12, dtype=int)) == 0
        assert set(find_modes(fields, share)[1].members) in ({*range(5)}, {*range(5, 12)})
        assert valley(places, share, heaps) > 0.12


class TestFile:
    def test_round_trip(self, tmp_path):
        examples = pick([example(4, distinct=1, p_value=0.01, valley_p_value=0.02), example(7, dice=(0.71, 0.75, 0.7))])
        write(examples, tmp_path / "new" / "examples.csv")
        again = read(tmp_path / "new" / "examples.csv")
        assert {name: e.pair for name, e in again.items()} == {"oracle": 7, "modes": 4}
        for name, one in examples.items():
            assert again[name][:-1] == pytest.approx(one[:-1], rel=1e-4)
            for old, new in zip(one.samples, again[name].samples, strict=True):
                assert new == pytest.approx(old, rel=1e-4)
                assert isinstance(new.mode, int)
        lines = (tmp_path / "new" / "examples.csv").read_text().splitlines()
        assert lines[0].split(",") == list(COLUMNS)
        assert len(lines) == 1 + 3 + 2

    def test_other_files_are_refused(self, tmp_path):
        path = tmp_path / "examples.csv"
        path.write_text("example,pair\noracle,1\nmodes,2\n")
        with pytest.raises(SystemExit, match=r"error: .*examples\.csv is no file of this program"):
            main(["--draw", "--csv", str(path), "--output", str(tmp_path / "x.png")])
        with pytest.raises(SystemExit, match="nothing"):
            main(["--draw", "--csv", str(tmp_path / "nothing.csv")])
        with pytest.raises(SystemExit):
            main([])


class TestDrawing:
    @pytest.mark.parametrize(
        ("distinct", "words"), [(0, "No two modes in any of 2 pairs"), (1, "Two modes: in 1 of 2 pairs")]
    )
    def test_panels_say_what_was_found(self, distinct, words):
        figure = draw(pick([example(3, distinct=distinct, valley_p_value=0.03), example(5, dice=(0.7, 0.75))]))
        oracle, modes = figure.axes
        assert "pair 5\n+0.0500 over the mean field, the largest gain of 2 pairs" in oracle.get_title()
        assert words in modes.get_title()
        assert "pair 3" in modes.get_title()
        labels = [text.get_text() for axes in (oracle, modes) for text in axes.get_legend().get_texts()]
        kind = "mode" if distinct else "group"
        assert labels == [
            "2 different samples", "Oracle: DSC 0.750", "mean field: DSC 0.700", "μ: DSC 0.650",
            f"{kind} 1: 50%, mean DSC 0.690", f"{kind} 2: 50%, mean DSC 0.720", "mean field: DSC 0.700",
        ]  # fmt: skip

    def test_a_single_sample(self):
        assert len(draw(pick([example(dice=(0.7,))])).axes[1].get_legend().get_texts()) == 2

    def test_from_the_file_alone(self, tmp_path):
        write(pick([example()]), tmp_path / "a.csv")
        main(["--draw", "--csv", str(tmp_path / "a.csv"), "--output", str(tmp_path / "pictures" / "a.png")])
        assert Image.open(tmp_path / "pictures" / "a.png").size == (1000, 480)

    def test_on_the_results_page_once_there_are_examples(self, tmp_path):
        assert "examples.png" not in links(tmp_path)
        write(pick([example()]), tmp_path / "examples.csv")
        assert "](images/results/examples.png)" in links(tmp_path)
        assert draw_all(tmp_path, tmp_path / "images") == [tmp_path / "images/examples.png"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Brains in files, a small config, and weights of an untrained network."""
    folder = tmp_path_factory.mktemp("examples")
    write_cohort(folder / "brains", 3, spacing=4.0)
    (folder / "small.yaml").write_text(SMALL)
    parser = ConfigParser()
    parser.read_config([str(ROOT / CONFIGS[0]), str(folder / "small.yaml")])
    torch.manual_seed(0)
    torch.save(parser.get_parsed_content("network_def").state_dict(), folder / "model.pt")
    return folder


def test_from_brains_to_the_picture_as_the_evaluation_does(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    configs = [CONFIGS[0], str(files / "small.yaml"), CONFIGS[1]]
    paths = {"csv": tmp_path / "examples.csv", "output": tmp_path / "examples.png"}
    options = {"ckpt_path": files / "model.pt", "dataset_dir": files / "brains", "split": "all", "split_file": ""}
    numbers = {"num_pairs": 3, "num_proposals": 12, "num_samples": 8, "refine_steps": 1}
    arguments = {**options, **paths, **numbers, "config_file": ",".join(configs)}
    main([part for name, value in arguments.items() for part in (f"--{name}", str(value))])
    assert Image.open(paths["output"]).size == (1000, 480)
    assert "pair 2: DSC of μ 0." in capsys.readouterr().out

    given = {name: str(value) for name, value in options.items()}
    given |= {"num_pairs": 3, "evaluated_proposals": 12, "evaluated_samples": 8, "refine_steps": 1}
    evaluation = build(configs, str(tmp_path / "evaluation"), given)
    evaluation.figures = False
    evaluation.run()
    scores = [result.pair for result in evaluation.store.results]
    examples = read(paths["csv"])
    gains = [score["dice_oracle"] - score["dice_mean"] for score in scores]
    assert examples["oracle"].pair == int(np.argmax(gains))
    for found in examples.values():
        score = scores[found.pair]
        assert (found.dice_mu, found.dice_mean) == pytest.approx((score["dice_mu"], score["dice_mean"]), abs=1e-4)
        assert found.dice_mean + found.gain == pytest.approx(score["dice_oracle"], abs=1e-4)
        assert (len(found.samples), found.pairs) == (score["unique"], 3)
        assert sum(sample.weight for sample in found.samples) == pytest.approx(1)
        assert max(sample.log_weight for sample in found.samples) <= 0
        assert sum(sample.weight * sample.first_mm for sample in found.samples) == pytest.approx(0, abs=1e-4)


def test_a_model_without_samples_is_refused(files, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    configs = [CONFIGS[0], "configs/variants/vxm.yaml", CONFIGS[1]]
    torch.manual_seed(0)
    parser = ConfigParser()
    parser.read_config(configs[:2])
    torch.save(parser.get_parsed_content("network_def").state_dict(), tmp_path / "vxm.pt")
    given = {"ckpt_path": str(tmp_path / "vxm.pt"), "dataset_dir": str(files / "brains"), "split": "all"}
    with pytest.raises(ValueError, match="one field and has no samples"):
        build(configs, str(tmp_path), given)
