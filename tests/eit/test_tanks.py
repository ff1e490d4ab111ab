"Data of tomography: what is simulated, read, written, and refused."

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHARED, Evil, data_folder, refused

from mshnet.cli import main
from mshnet.core import UserError
from mshnet.eit.eit_config import EitConfig
from mshnet.eit.tank import DISTANCE, render_images, simulate, tank_map, turn_voltages
from mshnet.eit.tanks import (
    _SEEDS,
    Stats,
    check_voltages,
    describe_folder,
    load_tanks,
    open_folder,
    read_measurements,
    simulated_tanks,
    write_tanks,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    "A data set as the command writes it."
    folder = tmp_path_factory.mktemp("eit") / "set"
    write_tanks(folder, {"train": 6, "val": 4, "test": 4})
    return folder


@pytest.fixture
def folder(tmp_path, written):
    "A copy of it, to spoil."
    return Path(shutil.copytree(written, tmp_path / "set"))


@pytest.fixture
def real():
    "The folder of the real tanks."
    return data_folder("eit-tank")


def spoil(file, **arrays):
    "Write other arrays into a file."
    with np.load(file) as found:
        np.savez(file, **{**found, **arrays})


def test_the_statistics_in_the_library(real):
    "Those of 300 tanks that it simulates, and the published ones, pooled over equal distances."
    drawn, read = Stats.of(simulate(300, 11, 8)[0]), Stats.read(real).pooled()
    for which, found, most in (("simulated", drawn, 0.1), ("published", read, 1e-3)):
        known = Stats.known(which)
        assert (found.std / known.std - 1).abs().max() < most
        assert ((found.mean - known.mean) / known.std).abs().max() < most


def test_a_written_set_is_read_back(written, folder):
    "Voltages and pictures are those of the simulation, by seed and index."
    tanks = open_folder(written, "train", 128)
    voltages, images = simulate(6, 0, 128)
    torch.testing.assert_close(tanks.voltages, voltages)
    for i in range(6):
        ys, xs = tanks.pair(i)
        assert torch.equal(ys, voltages[i]) and torch.equal(xs, images[i])
    with np.load(written / "train/000000.npz") as file:
        shapes = {name: (file[name].shape, file[name].dtype.name) for name in file}
    assert shapes == {"ys": ((208, 1), "float32"), "xs": ((128, 128), "float32")}
    assert torch.allclose(Stats.read(written).std, Stats.known("simulated").std, atol=0)
    mean = torch.load(written / "mean.pth", weights_only=True)
    assert (mean.shape, mean.dtype) == ((1, 16, 13), torch.float32)
    (folder / "train/000005.npz").rename(folder / "train/5.NPZ")
    (folder / "train/._5.npz").touch()  # of another system, hidden
    assert "train: 6 tanks, correlation 0.9" in describe_folder(folder)
    for other in ({"seed": 1, "counts": {"train": 6}}, {"counts": {"train": 5}}):
        with pytest.raises(UserError, match="holds other data"):
            write_tanks(written, **other)


def test_the_command_writes_and_reports(tmp_path, capsys, monkeypatch):
    "`mshnet data --task eit`, as a user types it."
    monkeypatch.setattr("mshnet.eit.reconstruction.write_tanks", lambda *a, **k: None)
    assert main(["data", "--task", "eit", "--write", str(tmp_path / "new"), "--tanks", "8"]) == 0
    assert "520 files written" in capsys.readouterr().out
    assert "task detect has no data" in refused(capsys, "data", "--write", str(tmp_path / "new"))
    for where, words in ((tmp_path / "no", "there is no such folder"), (__file__, "unpack it")):
        assert main(["data", "--task", "eit", str(where)]) == 2 and words in capsys.readouterr().err


def test_turned_pairs_fit_each_other(written):
    "Voltages and picture turn together, from files and from drawn things."
    files = open_folder(written, "test", 64)
    drawn = simulated_tanks("test", 4, _SEEDS["test"], 64, fine=True)
    assert torch.equal(files.voltages, drawn.voltages)
    assert len({*_SEEDS.values(), *range(9)}) == 11  # another seed of training is another set
    for way in (3, 8, 21):
        (v1, x1), (v2, x2) = files.pair(1, way), drawn.pair(1, way)
        assert torch.equal(v1, v2) and float((x1 - x2).abs().mean()) < 0.01
        assert float((x1 - files.pair(1)[1]).abs().mean()) > 0.01
    assert torch.equal(drawn.pair(1)[1], render_images(drawn.shapes[1:2], 64)[0])


def test_parts_of_a_run(written, real):
    "Simulated, from a folder, or recordings; training and test are never the same tanks."
    found = load_tanks(EitConfig(tanks=70, size=32), ["train", "val", "test"])
    assert [len(v) for v in found.values()] == [70, 64, 64]
    assert len({v.hash for v in found.values()}) == 3
    other = load_tanks(EitConfig(tanks=70, seed=5), ["train", "test"])
    assert other["test"].hash == found["test"].hash != other["train"].hash != found["train"].hash
    mine = load_tanks(EitConfig(dataset_dir=str(written)), ["train", "val", "test"])
    assert [v.source for v in mine.values()] == ["set/train", "set/valid", "set/test"]
    both = load_tanks(EitConfig(dataset_dir=str(real), data="ktc2023", tanks=8), ["train", "test"])
    assert (both["train"].source, len(both["test"])) == ("simulated tanks", 25)
    with pytest.raises(UserError, match="data=uef2017 needs dataset_dir"):
        load_tanks(EitConfig(data="uef2017"), ["test"])
    with pytest.raises(UserError, match=r"has no folder test2017 .*there are test, train, valid"):
        load_tanks(EitConfig(data="uef2017", dataset_dir=str(written)), ["test"])
    with pytest.raises(UserError, match="dataset_dir is the folder around it"):
        load_tanks(EitConfig(dataset_dir=str(written / "train")), ["train"])


def test_the_fingerprint_changes_with_the_files(folder):
    "A file more, a name or a size; the folder may move."
    before = open_folder(folder, "test", 32).hash
    moved = folder.rename(folder.with_name("moved"))
    assert open_folder(moved, "test", 32).hash == before
    file = moved / "test/000000.npz"
    spoil(file, ys=np.load(file)["ys"])
    there = open_folder(moved, "test", 32)
    assert len(there.hash) == len(there.content) == 12
    spoil(file, ys=1.01 * np.load(file)["ys"])
    again = open_folder(moved, "test", 32)
    assert again.hash == before and again.content != there.content
    shutil.copy(moved / "train/000001.npz", moved / "test")
    with pytest.warns(UserWarning, match="^1 of the 4 samples of test are training samples, too"):
        load_tanks(EitConfig(dataset_dir=str(moved)), ["train", "test"])
    (moved / "test/000000.npz").rename(moved / "test/9.npz")
    assert open_folder(moved, "test", 32).hash != before


def turned_order():
    "For each driven pair, the sensed pairs from the driven one on, as some instruments write them."
    return torch.cat([torch.arange(13 * r, 13 * r + 13).roll(-max(r - 1, 0)) for r in range(16)])


def turned(way):
    "Turns the voltages of a file."
    return lambda y: turn_voltages(torch.tensor(y).T, torch.tensor([way])).T.numpy()


def spoiled(how, folder):
    "Spoil the test part of a data set, and the words of the line that says so."
    files, evil = sorted((folder / "test").glob("*.npz")), Evil(folder.parent / "trap")
    ys = [np.load(file)["ys"] for file in files]
    one = {
        "207": ({"ys": np.zeros(207)}, "207 voltages; a measurement of 16 electrodes has 208"),
        "nan": ({"ys": np.full((208, 1), np.nan)}, "NaN, above 1e10 or not a number"),
        "text": ({"ys": np.array(["1"] * 208)}, "NaN, above 1e10 or not a number"),
        "pickle": ({"ys": np.array([evil], dtype=object)}, "it would run code"),
        "xs": ({"xs": np.zeros((128, 64))}, "not a square of numbers"),
        "xs text": ({"xs": np.full((64, 64), "0")}, "<U1.* not a square of numbers"),
        "xs nan": ({"xs": np.full((64, 64), np.nan)}, "xs is up to nan; .*0 outside of the tank"),
        "labels": ({"xs": np.full((64, 64), 2)}, "xs is up to 2; write -1 to 1"),
    }
    if how in one:
        spoil(files[0], **one[how][0])
        return f"{files[0].name}: .*{one[how][1]}"
    if how == "no ys":
        np.savez(files[0], xs=0)
        return "no array 'ys', but xs"
    if how in ("test", "train"):  # a file that is not among the 32 that are compared with physics
        for i in range(60):
            shutil.copy(files[i % 4], folder / how / f"1{i:05d}.npz")
        spoil(folder / how / "100001.npz", ys=np.zeros(200))
        return "100001.npz: 200 voltages"
    if how == "broken":
        files[0].write_bytes(files[0].read_bytes()[:1000])
        return "not a readable npz file"
    changes = {
        "turned": (turned(5), "counted in another order; .*turned by 5 electrodes"),
        "mirrored": (turned(18), "mirrored, then turned by 2 electrodes"),
        "order": (lambda y: y[turned_order().numpy()], "208 voltages are in another order"),
        "whole": (np.abs, "all voltages of a tank have one sign"),
        "sign": (lambda y: -y, r"voltages is reversed; .* -\S+, but \d\S+ with the sign"),
        "shuffled": (lambda y: ys[[x is y for x in ys].index(True) - 1], "images in no orient"),
        "unit": (lambda y: 1040 * y, "statistics of another set, or the voltages have another"),
    }
    change, words = changes[how]
    for file, y in zip(files, ys, strict=True):
        spoil(file, ys=change(y))
    return words


BAD = ["207", "nan", "text", "pickle", "no ys", "xs", "broken", "labels", "xs text", "xs nan"]
BAD += ["test", "train", "turned", "mirrored", "order", "sign", "shuffled", "unit", "whole"]


@pytest.mark.parametrize("how", BAD)
def test_bad_data_is_one_line(how, folder, capsys):
    "From the command: status 2, one line, the file's name, nothing run and nothing written."
    words = spoiled(how, folder)
    with pytest.raises(UserError, match=words):
        describe_folder(folder)
    out = folder.parent / "run"
    asked = ["train", "--task", "eit", "--dataset-dir", str(folder), "--output-dir", str(out)]
    assert main([*asked, "--device", "cpu", "--epochs", "1"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (folder.parent / "trap").exists()
    assert not list(out.glob("*.pt"))


def test_bad_statistics_are_one_line(folder):
    "std.pth that is not what it should be."
    (folder / "std.pth").unlink()
    with pytest.raises(UserError, match=r"has no std.pth; copy both files of the training"):
        open_folder(folder, "test", 32)
    evil = Evil(folder.parent / "trap")
    for content in (torch.zeros(1, 16, 13), torch.ones(1, 16, 12), {"std": 1}, evil):
        words = "it would run code" if content is evil else "std.pth: not 1x16x13 numbers"
        torch.save(content, folder / "std.pth")
        with pytest.raises(UserError, match=words):
            open_folder(folder, "test", 32)


def test_real_tanks_are_read_as_published(real):
    "Divided by their factor, clipped, checked, and normalised by the published numbers."
    tanks = open_folder(real, "ktc2023", 128)
    assert (tanks.name, len(tanks), tanks.names[0]) == ("test", 25, "0_1")
    with np.load(tanks.files[0]) as file:
        ys, xs = file["ys"][:, 0], file["xs"]
    voltages, image = tanks.pair(0)
    torch.testing.assert_close(voltages, torch.tensor(ys / 1978))
    assert np.abs(xs).max() > 1 >= float(image.abs().max())
    golden = SHARED / "golden/eit/eim.npz"
    if golden.exists():
        uef = open_folder(real, "uef2017", 32)
        made = tank_map(uef.stats.normalise(uef.voltages[uef.names.index("2_2")]))
        want = torch.tensor(np.load(golden)["eim_test2017_2_2"][0])
        torch.testing.assert_close(made, want, atol=1e-5, rtol=1e-5)


def test_measurements_alone(tmp_path):
    "npz of one or many, tables with commas, semicolons or tabs, a row, a column, a heading."
    voltages = simulate(3, 4, 8)[0]
    np.savez(tmp_path / "one.npz", ys=voltages[0][:, None])
    np.savez(tmp_path / "one map.npz", ys=voltages[0].view(16, 13))
    np.savez(tmp_path / "many.npz", ys=voltages[:, :, None])
    (tmp_path / "many.npz").rename(tmp_path / "MANY.NPZ")
    for name, sign in (("a.csv", ","), ("b.csv", ";"), ("c.txt", "\t"), ("d.txt", " ")):
        np.savetxt(tmp_path / name, voltages, delimiter=sign)
    np.savetxt(tmp_path / "one column.csv", voltages[0])
    text = (tmp_path / "b.csv").read_text()
    for i, (old, new) in enumerate(((".", ","), ("-", "\u2212"), (";", '";"'))):
        (tmp_path / f"{i}.csv").write_text(text.replace(old, new), encoding="utf-8")
    for name in ("v{}", "{}", "{}.0", "voltage {}", "0-{}"):
        heading = ",".join(name.format(i) for i in range(208))
        np.savetxt(tmp_path / f"{name}.csv", voltages, delimiter=",", header=heading, comments="")
    for path in tmp_path.iterdir():
        found, count = read_measurements(path), 1 if path.name.startswith("one") else 3
        torch.testing.assert_close(found.voltages, voltages[:count])
        assert len(found.names) == count and not found.note
    (tmp_path / "test").mkdir()  # no data set by its name alone
    for unit, folder in ((1e4, tmp_path), (1e-4, tmp_path / "test")):
        np.savetxt(folder / "unit.csv", unit * voltages, delimiter=",")
        found = read_measurements(folder / "unit.csv")
        assert "divided by" in found.note
        assert 0.2 < float(found.voltages.norm() / voltages.norm()) < 5


def test_a_file_of_a_set_has_the_statistics_of_its_set(written, tmp_path):
    "Otherwise `predict` would show the network other numbers than `test`."
    file = sorted((written / "test").glob("*.npz"))[0]
    own, known = Stats.read(written), Stats.known("published")
    assert torch.equal(read_measurements(file).stats.mean, own.mean)
    for each in (written / "test").glob("*.npz"):  # a weak tank is not taken for another unit
        assert not read_measurements(each).note
    for part in ("train", "test"):  # a set without files of statistics
        shutil.copytree(written / part, tmp_path / part)
    here = open_folder(tmp_path, "test", 32).stats
    assert torch.equal(read_measurements(tmp_path / "test" / file.name).stats.std, here.std)
    (tmp_path / "alone.npz").write_bytes(file.read_bytes())
    np.savetxt(tmp_path / "test/mine.csv", 1000 * simulate(2, 4, 8)[0], delimiter=",")
    with pytest.raises(UserError, match=r"mine.csv \(folder test means a data set; else rename it"):
        read_measurements(tmp_path / "test/mine.csv")
    assert torch.equal(read_measurements(tmp_path / "alone.npz").stats.mean, known.mean)
    shutil.rmtree(tmp_path / "train")  # then only what the weights recorded can be used
    assert torch.equal(read_measurements(tmp_path / "test" / file.name).stats.mean, known.mean)
    with pytest.raises(UserError, match=r"has no mean.pth, std.pth and train; copy those of the"):
        open_folder(tmp_path, "test", 32)


def test_statistics_of_another_unit_are_noticed_either_way():
    "Voltages that are too small differ from the mean by as much as ones of the right size."
    voltages, stats = simulate(3, 4, 8)[0], Stats.known("simulated")
    check_voltages(voltages, "mine", stats)
    for unit, power in ((1e4, 1), (1e-4, 1), (1, 2)):  # variances
        with pytest.raises(UserError, match="the voltages have another unit"):
            check_voltages(unit * voltages, "mine", Stats(stats.mean, stats.std**power))


ONES = ",".join(["1"] * 207)
TABLES = {
    ONES: "row 0: 207 voltages",
    **{f"{x},{ONES}\n1,{ONES}": "row 0: .* above 1e10" for x in ("nan", "NA", "#N/A", "1e300")},
    f"x,{ONES}\n1,{ONES}": "not a table of numbers .*could not convert string 'x'",
    f"1,1,{ONES}": r"row 0: 209 voltages; .*; leave out the index column \(pandas",
    "\n".join(",".join(f"{d - 4}{e}" for d in DISTANCE) for e in ("", "", "e8")): r"2: .* 1e\+08 t",
    "1,2\n" * 208: "transpose it",
    "1,2\n3,x,4\n": r"not a table of numbers .*changed from 2 to 3 at row 2\)$",
    "a,b\n1,2\n3,5D-6\n": "could not convert string '5D-6' .*; write numbers such as -5",
    "": "holds no voltages; write numbers such as",
    "\0\xff" * 10: "holds no voltages|not a readable",
}


def test_bad_tables_are_one_line(tmp_path):
    "The file, the row, and what is wrong."
    for text, words in TABLES.items():
        (tmp_path / "mine.csv").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match=words):
            read_measurements(tmp_path / "mine.csv")


def test_recordings_are_in_the_right_order(real):
    "Every one of 47 tanks passes; none does with its numbers in another order."
    for part in ("uef2017", "ktc2023"):
        for voltages in open_folder(real, part, 32).voltages:
            check_voltages(voltages[None], "tank")
            with pytest.raises(UserError, match="in another order"):
                check_voltages(voltages[None, turned_order()], "tank")
    assert sorted(set(DISTANCE.tolist())) == [2, 3, 4, 5, 6, 7, 8]
