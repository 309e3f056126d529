"""The published tables: what CSV files give, and that the committed pages say exactly that."""

import dataclasses
import json
import math

import pytest

from experiments.baselines.samples import VolumeRow, append_volumes
from experiments.results.__main__ import main
from experiments.results.pages import PAGES, filled, outdated, tables, update
from experiments.results.result_pictures import draw_all, links
from experiments.results.result_tables import (
    NOTHING,
    model_table,
    one_mm_table,
    own_rows,
    perturbed_table,
    seconds,
    tool_table,
)
from experiments.results.store import add, common, filed_pairs, read_group
from experiments.results.targets import targets_table
from experiments.results.volumes import part_of, volume_table
from scripts.evaluation.pair_result import STRUCTURE_SCORES
from scripts.evaluation.results import ResultsError, ResultStore
from tests.engines.conftest import ROOT
from tests.evaluation.brains import made_up

NAMES = [("a", "b"), ("a", "c"), ("b", "a"), ("c", "b")]


def results(count=4, seed=0, fold=0.02, before=0.5, seconds=2.0, **scores):
    """Pairs of two structures with the given scores, the same for every pair and structure."""
    pairs = []
    for number, names in enumerate(NAMES[:count]):
        given = {name: [value, value] for name, value in scores.items() if name in STRUCTURE_SCORES}
        result = made_up(*names, seed=seed + number, **given)
        own = {
            "fold_mean": fold,
            "dice_before": before,
            "seconds_network": seconds / 2,
            "seconds_proposals": seconds / 2,
        }
        pairs.append(dataclasses.replace(result, pair={**result.pair, **own}))
    return pairs


def commit(folder, group, name, pairs, tmp_path):
    """Through the files of an evaluation, as in life."""
    store = ResultStore(tmp_path / "evaluation" / group / name)
    for pair in pairs:
        store.add(pair)
    return add(store.folder, group, name, folder)


def test_the_committed_tables_are_what_the_committed_csv_files_give(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert outdated() == []


def test_every_table_is_on_a_page():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for name in tables(ROOT / "docs/results"):
        assert f"<!-- table: {name} -->" in text, name


def test_files_hold_five_digits_and_gaps(tmp_path):
    pairs = results(ece=0.123456789)
    pairs[1].structures["ause_label"][0] = math.nan
    paths = commit(tmp_path, "variants", "s_lc", pairs, tmp_path)
    assert "0.12346" in paths[0].read_text()
    (again,) = read_group("variants", tmp_path).values()
    assert [(r.fixed, r.moving, r.labels) for r in again] == [(r.fixed, r.moving, r.labels) for r in pairs]
    for old, new in zip(pairs, again, strict=True):
        for score in STRUCTURE_SCORES:
            assert new.structures[score] == pytest.approx(old.structures[score], rel=1e-4, nan_ok=True)
        assert new.pair == pytest.approx(old.pair, rel=1e-4)


def test_order_of_the_models_is_that_of_the_paper(tmp_path):
    for name in ("zzz", "s_lc_10l", "v_d", "vxm5"):
        commit(tmp_path, "variants", name, results(1), tmp_path)
    assert list(read_group("variants", tmp_path)) == ["v_d", "s_lc_10l", "vxm5", "zzz"]
    assert read_group("baselines", tmp_path) == {}


def test_an_empty_folder_is_no_result(tmp_path):
    with pytest.raises(ResultsError, match="holds no complete pair"):
        add(tmp_path, "variants", "s_lc", tmp_path / "docs")


def test_cells_by_hand():
    pairs = results(2, ause_label=0.05, ece=0.08, label_entropy=0.1)
    # Structures 0.04 and 0.06 in one pair, 0.06 and 0.08 in the other: their means are 0.05 and 0.07.
    pairs[0].structures["ause_label"][:] = [0.04, 0.06]
    pairs[1].structures["ause_label"][:] = [0.06, 0.08]
    table = model_table({"s_lc": pairs}, ("v_lc", "s_lc"), "Calibration").splitlines()
    assert table[0].startswith("| Model | Pairs | AUSE_label ↓ | ECE ↓ |")
    # Sample deviation of {0.05, 0.07}: 0.01 · √2
    assert table[2].startswith("| S+LC | 2 | 0.0600 (0.014) | 0.0800 (0.000) | 0.1000 (0.000) |")
    assert len(table) == 3
    assert model_table({}, ("s_lc",), "Accuracy") == NOTHING


def test_tools_are_compared_on_the_same_pairs():
    tools = {"syn": results(2, dice_mean=0.7, seconds=60.0)}
    ours = results(4, dice_mean=0.75, seconds=3.0)
    ours[3].structures["dice_mean"][:] = [0.0, 0.0]  # a pair that SyN does not have
    syn, model = tool_table(tools, {"S+LC 10L, refined": ours}).splitlines()[2:]
    assert syn == "| SyN (ANTs) | 2 | 0.500 | 0.700 (0.00) | 0.020 | 60.0 |"
    assert model == "| S+LC 10L, refined | 2 | 0.500 | 0.750 (0.00) | 0.020 | 3.0 |"


def test_files_at_1_mm_stand_beside_the_default_on_the_same_pairs_and_have_the_seconds_of_one_go():
    default = results(4, dice_mean=0.8, seconds=99.0)
    default[3].structures["dice_mean"][:] = [0.4, 0.4]  # a pair that ConvexAdam does not have
    group = {"convexadam": results(2, dice_mean=0.7), "detail": default}
    timed = {"convexadam": results(1, seconds=60.0), "detail": results(2, seconds=16.0)}
    for tool, rest in (("convexadam", 0.0), ("detail", 14.0)):
        for result in timed[tool]:
            result.pair["seconds_evaluation"] = rest
    tool, own = one_mm_table(group, timed).splitlines()[2:]
    assert tool == "| ConvexAdam | 2 | 0.500 | 0.700 (0.00) | 0.800 | 0.020 | 60 | – |"
    assert own.endswith("| 4 | 0.500 | 0.700 (0.00) | 0.700 | 0.020 | 16 | 14 |")
    assert one_mm_table(group, {}).splitlines()[2].endswith("| 0.020 | – | – |")
    assert one_mm_table({}, timed) == NOTHING


def test_pairs_that_were_missing_join_those_that_are_filed(tmp_path):
    commit(tmp_path, "one_mm", "syn", results(3, dice_mean=0.7), tmp_path / "before")
    assert filed_pairs("one_mm", "syn", tmp_path) == set(NAMES[:3])
    assert filed_pairs("one_mm", "convexadam", tmp_path) == set()
    store = ResultStore(tmp_path / "after")
    for result in results(4, dice_mean=0.9)[2:]:  # one is there already: the new one counts
        store.add(result)
    add(store.folder, "one_mm", "syn", tmp_path, merge=True)
    merged = {(r.fixed, r.moving): r.structures["dice_mean"][0] for r in read_group("one_mm", tmp_path)["syn"]}
    assert merged == dict(zip(NAMES, (0.7, 0.7, 0.9, 0.9), strict=True))
    add(store.folder, "one_mm", "syn", tmp_path)
    assert filed_pairs("one_mm", "syn", tmp_path) == set(NAMES[2:])


def test_a_tool_with_fewer_pairs_stands_beside_the_shipped_model_on_these():
    shipped = results(4, dice_mean=0.75)
    shipped[3].structures["dice_mean"][:] = [0.55, 0.55]
    tools = {"syn": results(2, dice_mean=0.7), "convexadam": results(4, dice_mean=0.71)}
    rows = tool_table(tools, own_rows({}, {}, {"model": shipped})).splitlines()
    assert rows[0].endswith("| Shipped model on these pairs |")
    assert [row.split(" | ")[-1] for row in rows[2:]] == ["0.750 |", "0.700 |", "0.700 |"]


def test_disturbed_pairs_beside_the_same_pairs_as_they_are():
    table = perturbed_table(
        {"blur": results(2, dice_mean=0.70, before=0.4, ece=0.1)}, results(4, dice_mean=0.72, ece=0.1)
    )
    assert table.splitlines()[2] == "| blur | 2 | 0.400 | 0.700 | -0.020 | 0.1000 |"


def test_the_shipped_model_is_not_the_comparisons(tmp_path):
    commit(tmp_path, "variants", "s_lc_10l", results(dice_mean=0.75), tmp_path)
    commit(tmp_path, "baselines", "syn", results(2, dice_mean=0.7), tmp_path)
    commit(tmp_path, "perturbed", "blur", results(2, dice_mean=0.70), tmp_path)
    made = tables(tmp_path)
    assert made["performance"]() == NOTHING
    assert made["perturbed"]().splitlines()[2].split(" | ")[4] == "–"
    assert "shipped model" not in made["baselines"]()
    commit(tmp_path, "shipped", "model", results(3, dice_mean=0.78), tmp_path)
    made = tables(tmp_path)
    assert made["performance"]().splitlines()[2].startswith("| 2 mm | 3 | 0.500 | 0.780 |")
    assert made["perturbed"]().splitlines()[2].split(" | ")[4] == "-0.080"
    rows = [line.split(" | ")[:4] for line in made["baselines"]().splitlines()[2:]]
    assert rows[-1] == ["| shipped model", "2", "0.500", "0.780 (0.00)"]  # on SyN's two pairs
    assert rows[-2][0] == "| S+LC 10L, network alone"
    assert "shipped" not in made["accuracy"]()


def compared(ours, theirs):
    same, other = common(ours, theirs)
    return [(r.fixed, r.moving) for r in same], [(r.fixed, r.moving) for r in other]


def test_common_pairs():
    same, other = compared(results(4), results(4)[::-1][:2])
    assert same == other == NAMES[2:]


def variants(**changes):
    ours = {"dice_mean": 0.75, "dice_oracle": 0.76, "ause_label": 0.05, "ece": 0.08, **changes}
    theirs = {"dice_mean": 0.74, "dice_oracle": 0.745, "ause_label": 0.07, "ece": 0.1}
    out = {"s_lc_10l": results(**ours), "v_lc": results(**theirs)}
    # Rank correlation of entropy and Dice: falling together for ours, rising together for theirs.
    for number in range(4):
        for name, sign in (("s_lc_10l", -1), ("v_lc", 1)):
            out[name][number].structures["label_entropy"][:] = [0.1 + sign * 0.01 * number] * 2
            out[name][number].structures["dice_mean"][:] = [
                value + 1e-4 * (number - 1.5) for value in out[name][number].structures["dice_mean"]
            ]
    return out


def verdicts(table, column=2):
    """Of the networks alone, or (column 4) with refinement."""
    return {
        line.split(" | ")[0].strip("| "): line.split(" | ")[column].strip("| ")
        for line in table.splitlines()[2:]
        if line.startswith("|")
    }


def test_targets_in_plain_words():
    table = targets_table(variants(), {}, {}, {}, {}, {})
    assert "0.0500 against 0.0700: 0.714 times" in table
    assert "-1.000 against 1.000: lower by 2.000" in table
    assert set(verdicts(table).values()) == {"yes"}
    assert set(verdicts(table, 4).values()) == set(verdicts(table, 6).values()) == {"–"}
    assert "Reached: network alone 5 of 5, trained longer 0 of 0, refined 0 of 0." in table
    worse = variants(ause_label=0.0561, dice_mean=0.7399, dice_oracle=0.7478)
    table = targets_table(variants(), {}, worse, {}, {}, {})
    assert set(verdicts(table).values()) == {"yes"}
    missed = [wanted for wanted, verdict in verdicts(table, 6).items() if verdict == "**no**"]
    assert [text.split(": ")[1][:6] for text in missed] == ["AUSE_l", "Dice o", "Oracle"]
    assert "refined 2 of 5" in table
    assert verdicts(targets_table(variants(), worse, {}, {}, {}, {}), 4) == verdicts(table, 6)


def test_targets_against_tools_and_of_the_velocity_variant():
    models = {"s_lc_10l": results(dice_mean=0.75, seconds=5.0), "s_lc_svf": results(dice_mean=0.7449, fold=0.011)}
    tools = {"convexadam": results(2, dice_mean=0.76, seconds=14.0), "syn": results(2, dice_mean=0.7599, seconds=60.0)}
    files = {"convexadam": tools["convexadam"], "fast": results(dice_mean=0.77, seconds=100.0)}
    timed = {"convexadam": results(1, seconds=30.0), "fast": results(1, seconds=10.0)}
    table = targets_table(models, {}, {}, tools, files, timed)
    assert list(verdicts(table).values()) == ["**no**", "**no**", "yes", "yes", "**no**", "**no**", "yes", "yes"]
    assert list(verdicts(table, 6).values()) == ["–"] * 8
    detailed = targets_table(models, {}, {}, tools, {**files, "detail": files["fast"]}, timed)
    assert list(verdicts(detailed, 6).values()) == ["–"] * 8 + ["yes"]  # what is refined is not the network alone
    assert "on 2 pairs: -0.0100" in table
    assert "10.0 s against 30.0 s" in table  # as timed in one go, whatever the files' own rows took
    assert "a fraction" not in targets_table(models, {}, {}, tools, files, {"fast": timed["fast"]})
    assert targets_table({}, {}, {}, {}, {}, {}) == NOTHING


def test_pages_are_filled_and_found_outdated(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: accuracy -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    docs = tmp_path / "docs"
    assert update(docs, (page,)) == [page]
    assert page.read_text() == f"before\n<!-- table: accuracy -->\n\n{NOTHING}\n<!-- end -->\nafter\n"
    assert outdated(docs, (page,)) == []
    commit(docs, "variants", "v_d", results(dice_mean=0.7), tmp_path)
    assert outdated(docs, (page,)) == [page]
    update(docs, (page,))
    assert "| V+D | 4 |" in page.read_text()
    with pytest.raises(ValueError, match="there is no table 'nonsense'"):
        filled("<!-- table: nonsense -->\n<!-- end -->", tables(docs))


def test_figures(tmp_path):
    for number, name in enumerate(("v_lc", "s_lc_10l", "vxm5")):
        commit(tmp_path, "variants", name, results(seed=10 * number), tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "training/v_lc.csv").write_text("iteration,dice,variance,ess\n50,0.6,0.2,0.1\n100,0.7,0.1,0.2\n")
    drawn = {path.stem for path in draw_all(tmp_path, tmp_path / "images")}
    assert links(tmp_path).count("](images/results/") == len(drawn)
    assert drawn == {"ladder", "accuracy_calibration", "dice", "oracle", "ece", "ause", "training"}
    assert draw_all(tmp_path / "nothing", tmp_path / "none") == []


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for page in PAGES:
        (tmp_path / page).write_text(
            "<!-- table: calibration -->\n<!-- end -->\n<!-- table: fitted_temperature -->\n<!-- end -->\n"
        )
    store = ResultStore(tmp_path / "run/evaluation_test")
    store.add(results(1)[0])
    (tmp_path / "run/validation.csv").write_text("iteration,dice\n50,0.6\n")
    row = {"temperature": 3.0, "scale": 1e5, "ause_label": 0.06, "ece": 0.09, "label_entropy": 0.1, "ess": 20.0}
    row["dice_mean"] = 0.77
    report = {
        "criterion": "ause",
        "pairs": 6,
        "dice_tolerance": 0.002,
        "refine_steps": 50,
        "num_proposals": 400,
        "num_samples": 80,
        "weights": "/home/x/model.pt",
    }
    report |= {"before": row, "after": {**row, "temperature": 4.5, "ause_label": 0.055}}
    (tmp_path / "run/calibration.json").write_text(json.dumps(report))
    main(["add", "run/evaluation_test", "--group", "variants", "--name", "s_lc_10l"])
    main(["add", "run/evaluation_test", "--group", "shipped", "--name", "model"])
    assert (tmp_path / "docs/results/shipped/model_pairs.csv").is_file()
    main(["training", "run", "--name", "s_lc_10l"])
    main(["calibration", "run"])
    assert "/home" not in (tmp_path / "docs/results/calibration.json").read_text()
    with pytest.raises(SystemExit, match=r"not what the CSV files give: docs/results\.md, docs/README\.md"):
        main(["check"])
    main([])
    main(["check"])
    assert "the tables are what the CSV files give" in capsys.readouterr().out
    page = (tmp_path / PAGES[0]).read_text()
    assert "| after | 4.5 | 1e+05 | 0.7700 | 0.0550 | 0.0900 | 0.1000 | 20.0 |" in page
    assert "80 of 400 proposals" in page
    with pytest.raises(SystemExit, match=r"error: .*nowhere"):
        main(["add", "nowhere", "--group", "variants", "--name", "x"])


def test_volumes_inside_of_their_intervals_by_hand(tmp_path):
    rows = [
        VolumeRow("a", "b", 1, 110.0, 100.0, 120.0, 100.0),  # inside, at its end
        VolumeRow("a", "b", 3, 50.0, 40.0, 60.0, 80.0),  # outside
        VolumeRow("a", "b", 17, 10.0, 9.0, 11.0, 0.0),  # not there
    ]
    append_volumes(tmp_path / "volumes.csv", rows)
    table = volume_table(tmp_path / "volumes.csv")
    assert "| all 31 structures | 2 | 50 % | 22 % | 24 % |" in table
    assert "| ventricles | 1 | 0 % | 25 % | 38 % |" in table
    assert "1 pairs" in table
    assert volume_table(tmp_path / "none.csv").startswith("Not measured")
    assert part_of(17) == part_of(33) != part_of(4) == part_of(12)


def test_seconds_of_another_machine_are_left_out(tmp_path):
    commit(tmp_path, "baselines", "syn", results(1, seconds=3.0), tmp_path / "before")
    store = ResultStore(tmp_path / "after")
    store.add(results(2, seconds=9.0)[1])
    add(store.folder, "baselines", "syn", tmp_path, merge=True, untimed=True)
    filed = read_group("baselines", tmp_path)["syn"]
    assert [math.isnan(result.pair["seconds_network"]) for result in filed] == [False, True]
    assert seconds(filed) == 3.0
    assert math.isnan(seconds(filed[1:]))
