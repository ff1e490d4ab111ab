"Files for other programs: what they hold, that they agree with the network, and what is refused."

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mshnet import export as exporting
from mshnet.cli import main
from mshnet.core import Config, UserError
from mshnet.evaluate import Detector, Origin, Trained, evaluate, trained_model
from mshnet.export import (
    KIND,
    TOLERANCE,
    OnnxDetector,
    beyond,
    example,
    export,
    open_detector,
    pictures,
    sample,
)
from mshnet.model import MSHNet
from mshnet.train import train

TINY = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 4, "choose": "last"}
TINY |= {"device": "cpu", "precision": "fp32", "epochs": 2, "warm_epoch": 0}
MISSING = [
    name
    for names in exporting.NEEDS.values()
    for name in names
    if importlib.util.find_spec(name) is None
]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"needs the extra export; pip install {' '.join(MISSING)}"
)
SIZES = [(1, 16, 16), (1, 32, 64), (3, 80, 48), (2, 16, 160)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A run of two epochs with all heads."
    return train(Config(**TINY, output_dir=str(tmp_path_factory.mktemp("export") / "run")))


@pytest.fixture(scope="module")
def onnx_file(run):
    "Its weights as ONNX, beside them."
    return export(run.folder / "best.pt").path


@pytest.fixture(scope="module")
def pt2_file(run):
    "And as a torch.export program."
    return export(run.folder / "best.pt", "pt2").path


@pytest.fixture
def copy(onnx_file, tmp_path):
    "A copy to damage."
    path = tmp_path / "copy.onnx"
    path.write_bytes(onnx_file.read_bytes())
    return path


def told(capsys):
    "The one line that was said."
    [line] = capsys.readouterr().err.splitlines()
    return line


def metadata(path):
    "What an ONNX file says of itself, read by onnx alone."
    import onnx

    said = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert list(said) == ["mshnet", "sha256"]
    return json.loads(said["mshnet"])


def seal(path, proto, note):
    "Write a changed ONNX file as if it were a good one."
    import onnx

    onnx.helper.set_model_props(proto, {"mshnet": json.dumps(note), "sha256": exporting.BLANK})
    path.write_bytes(exporting.sealed(proto.SerializeToString()))


@pytest.mark.parametrize("size", SIZES)
def test_onnx_agrees_with_the_network_at_any_size(run, onnx_file, size):
    "One image or several, sides of 16 pixels and more, in float32 on the CPU."
    images = pictures(*size)
    want = Detector(run.folder / "best.pt", "cpu", "fp32")(images)
    found = open_detector(onnx_file, "cpu")(images)
    assert (found.dtype, found.shape) == (torch.float32, want.shape)
    assert (found - want).abs().max() < TOLERANCE


def test_the_detector_is_called_as_the_other_is(run, onnx_file):
    "Name, device in words, batch size, and the same mistakes in the same words."
    detector = open_detector(str(onnx_file), "cpu")
    assert isinstance(detector, OnnxDetector)
    assert detector.name == "best.onnx"
    assert detector.why == "cpu, fp32: onnxruntime"
    images = pictures(3, 32, 48)
    for size in (1, 2, 8):
        assert torch.allclose(detector(images, batch_size=size), detector(images), atol=1e-4)
    other = open_detector(run.folder / "best.pt", "cpu", "fp32")
    assert isinstance(other, Detector)
    for wrong in (images.float(), images[0], images[:, :1], pictures(1, 40, 48)):
        said = []
        for one in (detector, other):
            with pytest.raises(ValueError, match=r"not uint8|multiples of 16") as error:
                one(wrong)
            said.append(str(error.value).split(": ", 1)[1])
        assert said[0] == said[1]


def test_a_reader_without_this_library_finds_all_it_needs(run, onnx_file):
    "Bytes in, probability out, threshold, normalisation, and the scores with their protocol."
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    [image] = session.get_inputs()
    assert (image.name, image.type) == ("image", "tensor(uint8)")
    assert image.shape[1] == 3
    assert all(isinstance(image.shape[i], str) for i in (0, 2, 3))
    assert [o.name for o in session.get_outputs()] == ["probability", "logits"]
    note = metadata(onnx_file)
    assert (note["kind"], note["threshold"], note["phase"]) == (KIND, 0.5, "full")
    assert note["normalisation"]["inside"] is True
    assert note["normalisation"]["mean"] == [0.485, 0.456, 0.406]
    assert note["result"] == json.loads((run.folder / "scores.json").read_text())
    assert note["chosen"] == note["result"]["protocol"]["chosen"] == "epoch 1, the last"
    made = [
        [[(7 * r + 13 * c + 31 * k + r * c) % 256 for c in range(32)] for r in range(32)]
        for k in range(3)
    ]
    [found] = session.run(["logits"], {"image": np.array([made], np.uint8)})
    want = np.array(note["example"]["logits every 8 pixels"])
    assert np.allclose(found[0, 0, ::8, ::8].ravel(), want, atol=1e-3, rtol=1e-3)


def test_no_folder_of_its_maker_is_in_a_file(run, onnx_file, pt2_file, tmp_path):
    "Exporters write down where each line of code stands; settings name folders."
    tensors = export(run.folder / "best.pt", output=tmp_path / "a.safetensors").path
    here = [str(Path(exporting.__file__).parent), str(run.folder.parent), "/torch/nn/"]
    for path in (onnx_file, pt2_file, tensors):
        data = path.read_bytes()
        assert [word for word in here if word.encode() in data] == []
    assert not {"output_dir", "dataset_dir", "train_list"} & metadata(onnx_file)["config"].keys()


def test_torch_export_agrees_and_tells_the_same(run, pt2_file):
    "Loaded by torch alone; its smallest side is 32."
    said = {"mshnet": ""}
    program = torch.export.load(pt2_file, extra_files=said).module()
    note = json.loads(said["mshnet"])
    assert (note["kind"], note["normalisation"]["inside"]) == (KIND, True)
    detector = Detector(run.folder / "best.pt", "cpu", "fp32")
    for size in ((1, 32, 32), (3, 64, 96), (2, 112, 32)):
        images = pictures(*size)
        assert (program(images)["probability"] - detector(images)).abs().max() < TOLERANCE
    with pytest.raises(UserError, match=r"torch\.export\.load"):
        open_detector(pt2_file)


def test_safetensors_is_scored_as_the_run_is(run, tmp_path, capsys):
    "With its phase and epoch; safetensors alone reads what is said of the rest."
    from safetensors import safe_open

    path = export(run.folder / "best.pt", output=tmp_path / "w.safetensors").path
    with safe_open(path, framework="pt") as file:
        note = json.loads(file.metadata()["mshnet"])
    assert (note["kind"], note["outputs"]) == (KIND, ["logits"])
    assert note["normalisation"]["inside"] is False
    assert note["normalisation"]["deviation"] == [0.229, 0.224, 0.225]
    result = evaluate(run.config.model_copy(update={"weight_path": str(path)}))
    assert str(result.scores) == run.scores["line"]
    assert result.protocol["chosen"] == run.scores["protocol"]["chosen"]
    path.write_bytes(path.read_bytes()[:1000])
    assert main(["test", "--weight-path", str(path), "--device", "cpu"]) == 2
    assert "or a damaged one" in told(capsys)


def test_weights_of_the_warm_up_leave_with_their_single_head(tmp_path):
    "The fused head was never trained; the file predicts as the checkpoint does."
    config = Config(**{**TINY, "epochs": 1, "warm_epoch": 5}, output_dir=str(tmp_path / "run"))
    weights = train(config).folder / "best.pt"
    path = export(weights).path
    assert metadata(path)["phase"] == "warm-up"
    images = pictures(2, 48, 32)
    want = Detector(weights, "cpu", "fp32")(images)
    assert (open_detector(path, "cpu")(images) - want).abs().max() < TOLERANCE
    tensors = export(weights, "safetensors").path
    assert trained_model(tensors).phase == "warm-up"


def test_published_weights_know_no_scores(tmp_path):
    "Nor is a folder's scores.json theirs, if they happen to lie beside it."
    torch.save({"state_dict": MSHNet().state_dict()}, tmp_path / "weights.tar")
    (tmp_path / "scores.json").write_text('{"protocol": {"chosen": "epoch 3, the last"}}')
    done = export(tmp_path / "weights.tar", "safetensors")
    assert done.path.name == "weights.safetensors"
    (tmp_path / "weights.tar").rename(tmp_path / "best.pt")
    assert export(tmp_path, "safetensors").path == tmp_path / "best.safetensors"
    (tmp_path / "best.pt").rename(tmp_path / "weights.tar")
    trained = trained_model(done.path)
    assert (trained.phase, trained.origin.seed) == ("full", None)
    note = exporting.about(tmp_path / "weights.tar", trained_model(tmp_path / "weights.tar"), True)
    assert note["result"] is None
    assert "how they were chosen: not known" in note["chosen"]


def test_another_epoch_has_no_scores_of_the_best(run, tmp_path):
    "The scores beside it are of the epoch that was kept."
    trained = trained_model(run.folder / "best.pt")
    assert exporting.result_of(run.folder / "best.pt", trained)
    other = replace(trained, origin=Origin("epoch 0, named by its file last.pt"))
    assert exporting.result_of(run.folder / "last.pt", other) is None


@pytest.mark.parametrize("format", ["onnx", "pt2", "safetensors"])
def test_a_file_that_disagrees_is_not_kept(run, monkeypatch, tmp_path, capsys, format):
    "One weight is off: nothing is left but the good file that was there before."
    target = tmp_path / f"x.{format}"
    target.write_text("the one before")

    def off(path, format):
        assert path.exists()
        return lambda images: {k: v + 0.01 for k, v in fake(images).items()}

    fake = exporting.network(trained_model(run.folder / "best.pt"))
    monkeypatch.setattr(exporting, "content", lambda *_: b"bytes")
    monkeypatch.setattr(exporting, "answers_of", off)
    line = ["export", "--weight-path", str(run.folder / "best.pt"), "--output", str(target)]
    assert main(line) == 2
    assert "not kept, it differs from PyTorch by 10 times" in told(capsys)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "the one before"


def test_a_tampered_graph_is_found_by_the_comparison(run, onnx_file, copy):
    "One of the fusing weights is changed a little in the file itself."
    import onnx

    proto = onnx.load(copy)
    [kernel] = [t for t in proto.graph.initializer if t.name.endswith("final.weight")]
    values = onnx.numpy_helper.to_array(kernel).copy()
    values[0, 0, 1, 1] += 0.05
    kernel.CopyFrom(onnx.numpy_helper.from_array(values, kernel.name))
    note = metadata(copy)
    trained = trained_model(run.folder / "best.pt")
    with torch.no_grad():
        trained.model.final.weight[0, 0, 1, 1] += 0.05
    changed = exporting.about(run.folder / "best.pt", trained, True)
    note["example"] = changed["example"]  # it passes as sound, and is another network
    seal(copy, proto, note)
    found = exporting.answers_of(copy, "onnx")
    same = exporting.network(trained_model(run.folder / "best.pt"))
    assert exporting.compare(found, exporting.network(trained))["logits"] <= 1
    assert exporting.compare(found, same)["logits"] > 1


def test_a_runtime_that_computes_otherwise_is_found_when_a_file_is_opened(copy):
    "The example does not come out."
    import onnx

    note = metadata(copy)
    note["example"]["logits every 8 pixels"][5] *= 1.01
    seal(copy, onnx.load(copy), note)
    with pytest.raises(UserError, match="does not compute its own example"):
        open_detector(copy, "cpu")


def test_a_flipped_bit_is_found_when_a_file_is_opened(run, copy, tmp_path):
    "Anywhere in the weights; the runtimes themselves read it without a word."
    tensors = export(run.folder / "best.pt", output=tmp_path / "w.safetensors").path
    for path, said in ((copy, "damaged, or changed"), (tensors, "or a damaged one")):
        data = bytearray(path.read_bytes())
        for place in (len(data) // 3, len(data) // 2):
            data[place] ^= 1
            path.write_bytes(data)
            with pytest.raises(UserError, match=said):
                open_detector(path, "cpu")
            data[place] ^= 1
    path.write_bytes(data)
    open_detector(path, "cpu")


@pytest.mark.parametrize("left", [0, 1, 1000, 1_000_000])
def test_a_truncated_file_is_one_line(copy, left):
    "Wherever it was cut off."
    copy.write_bytes(copy.read_bytes()[:left])
    with pytest.raises(UserError, match="another program's, or cut off") as error:
        open_detector(copy, "cpu")
    assert "\n" not in str(error.value)


def test_onnx_files_of_something_else_are_refused(tmp_path):
    "Those without our text, with another's, with ours but another graph, and from the future."
    import onnx
    from onnx import TensorProto, helper

    shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", shape[:1], shape[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    file, ours = tmp_path / "other.onnx", {"kind": KIND, "version": 1}
    cases = [
        (ours, "cannot read or run"),
        ({**ours, "example": {"logits every 8 pixels": [0.0] * 16}}, "cannot read or run"),
        ({"kind": "other", "of": KIND}, "something else"),
        ([KIND], "something else"),
        ({**ours, "version": 2}, "newer mshnet"),
        ({**ours, "version": "a\nb"}, "newer mshnet"),
        ({"kind": "other"}, "another program's"),
    ]
    onnx.save(model, file)
    for note, said in [(None, "another program's"), *cases]:
        if note is not None:
            seal(file, model, note)
        with pytest.raises(UserError, match=said) as error:
            open_detector(file, "cpu")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("device", "precision", "said"),
    [
        ("mps", "auto", "runs on cpu or cuda"),
        ("cuda:x", "auto", "runs on cpu or cuda"),
        ("cuda", "auto", "onnxruntime is for the CPU"),
        ("cpu", "bf16", "computes in fp32"),
    ],
)
def test_what_an_onnx_file_cannot_do_is_said(onnx_file, monkeypatch, device, precision, said):
    "It has a precision, and two kinds of devices."
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UserError, match=said):
        open_detector(onnx_file, device, precision)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export", "name the weights to export"),
        ("export --weight-path none.pt", "there is no such file"),
        ("export --weight-path .", "is a folder"),
        ("export --weight-path bad.pt", "not a torch file of weights"),
        ("export --weight-path old.onnx", "is exported already"),
        ("test --weight-path old.onnx", "`mshnet predict` takes ONNX files"),
        ("export --weight-path other.pt", "weights of another model"),
        ("export --weight-path w.pt --format tflite", "write onnx, pt2, safetensors"),
        ("export --weight-path w.pt --format onx", "did you mean onnx?"),
        ("export --weight-path w.pt --format pt2 --output a.onnx", "ends in .pt2"),
        ("export --weight-path w.pt --output a.bin", "ends in .onnx"),
        ("export --weight-path w.pt --output no/a.onnx", "there is no folder no"),
        ("export --weight-path w.safetensors --format safetensors", "is the file of the weights"),
        ("export --weight-path w.pt --epochs 3", "means nothing to `mshnet export`"),
        ("export --weight-path nan.pt --format safetensors", "predict no number"),
        ("pack run --format safetensors", "mshnet export"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, line, said):
    "Status 2."
    monkeypatch.chdir(tmp_path)
    weights = MSHNet().state_dict()
    torch.save(weights, "w.pt")
    torch.save({k: v * float("nan") for k, v in weights.items()}, "nan.pt")
    torch.save({"conv.weight": torch.ones(1)}, "other.pt")
    Path("bad.pt").write_text("no weights")
    Path("old.onnx").write_text("no weights")
    if "w.safetensors" in line:
        export("w.pt", output="w.safetensors")
    before = {p.name for p in tmp_path.iterdir()}
    capsys.readouterr()
    assert main(line.split()) == 2
    assert said in told(capsys)
    assert {p.name for p in tmp_path.iterdir()} == before


def test_a_missing_package_is_named_with_its_remedy(run, monkeypatch, capsys):
    "Before any work."
    monkeypatch.setattr(exporting, "importable", lambda name: name == "onnx")
    weights = str(run.folder / "best.pt")
    assert main(["export", "--weight-path", weights]) == 2
    assert "needs onnxruntime; run: pip install onnxruntime onnxscript" in told(capsys)
    assert main(["export", "--weight-path", weights, "--format", "safetensors"]) == 2
    assert "pip install safetensors" in told(capsys)
    with pytest.raises(UserError, match="pip install onnxruntime"):
        exporting.open_session(b"", "best.onnx", "cpu")


def test_the_command_says_what_it_wrote(run, tmp_path, capsys):
    "The file, its size, and how near it is."
    file = str(tmp_path / "a.safetensors")
    assert main(["export", "--weight-path", str(run.folder / "best.pt"), "--output", file]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{file}  16 MB  safetensors, differs from PyTorch by 0.0e+00 at most")


def test_a_full_disk_keeps_what_was_there(run, tmp_path, monkeypatch, capsys):
    "The new file never gets its name."
    target = tmp_path / "a.safetensors"
    target.write_text("the one before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mshnet.core.to_disk", full)
    assert main(["export", "--weight-path", str(run.folder / "best.pt"), "--output", str(target)])
    assert "No space left" in told(capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert target.read_text() == "the one before"


def test_equal_is_within_a_thousandth():
    "Of a logit, or of its size; a NaN is never equal."
    assert beyond(torch.tensor([0.0005]), torch.tensor([0.0])) == pytest.approx(0.5)
    assert beyond(torch.tensor([50.1]), torch.tensor([50.0])) == pytest.approx(2, rel=1e-3)
    assert beyond(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert len(sample(torch.zeros(1, 1, 32, 32))) == 16
    assert example().dtype == torch.uint8


def test_the_trained_model_is_left_as_it_was():
    "Exporting folds a copy."
    model = MSHNet()
    exporting.Program(model, True)
    assert model.encoder_0[0].by_hand
    assert isinstance(model.encoder_0[0].bn1, torch.nn.BatchNorm2d)
    assert exporting.network(Trained(model, "full", Origin("x")))


def test_mshnet_predict_takes_the_onnx_file(run, onnx_file, tmp_path, capsys):
    "With the detections of the weights it was made from; a damaged one is one line."
    rng = np.random.default_rng(0)
    for number in range(2):
        noise = rng.integers(0, 256, (50, 70), dtype=np.uint8)
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.fromarray(noise).save(tmp_path / "in" / f"{number}.png")
    masks = []
    for weights in (run.folder / "best.pt", onnx_file):
        out = tmp_path / weights.suffix
        words = [f"--weight-path={weights}", f"--output-dir={out}", "--device=cpu"]
        assert main(["predict", *words, "--precision=fp32", str(tmp_path / "in")]) == 0
        masks.append([np.asarray(Image.open(p)) for p in sorted((out / "masks").iterdir())])
    assert len(masks[0]) == len(masks[1]) == 2
    for one, other in zip(*masks, strict=True):
        assert (one != other).mean() < 1e-3  # a logit of 0 to rounding may be either
    (tmp_path / "bad.onnx").write_bytes(onnx_file.read_bytes()[:1000])
    capsys.readouterr()
    assert main(["predict", f"--weight-path={tmp_path / 'bad.onnx'}", str(tmp_path / "in")]) == 2
    assert "bad.onnx" in told(capsys)


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_weights_that_are_no_numbers_are_named_as_such(tmp_path, form):
    "And not the runtime, or the file that was made of them."
    weights = MSHNet().state_dict()
    next(iter(weights.values())).fill_(torch.nan)
    torch.save(weights, tmp_path / "nan.pt")
    with pytest.raises(UserError, match=r"nan\.pt: weights that predict no number"):
        export(tmp_path / "nan.pt", form)
    assert [p.name for p in tmp_path.iterdir()] == ["nan.pt"]


def test_a_runtime_that_fails_is_one_line(onnx_file, monkeypatch):
    "Want of memory is said as such, so that predict can name the setting."
    detector = OnnxDetector(onnx_file, "cpu")
    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)

    class Failing:
        def __init__(self, text):
            self.text = text

        def run(self, *_):
            raise Exception(self.text)

    detector.session = Failing("Failed to allocate memory for requested buffer of size 9")
    with pytest.raises(MemoryError):
        detector(images)
    detector.session = Failing("it broke\nin many lines")
    with pytest.raises(UserError, match=r"onnxruntime fails .it broke."):
        detector(images)
