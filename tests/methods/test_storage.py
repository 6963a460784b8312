"""Methods in files: what comes back predicts the same, what a file cannot hold is asked for, damage is found."""

import json

import pytest
import torch
from torch import nn

import bedl
from bedl._utils.errors import ModelFileError
from bedl._utils.io import OutputExistsError
from bedl.heads import MeanVariance
from bedl.methods.baselines.exact_gp import ExactGP
from bedl.methods.plain import Deterministic

X = torch.linspace(-1, 1, 12).view(6, 2)


def net():
    return bedl.bayesianize(nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 3)))


def method():
    head = bedl.Dirichlet(3, label_smoothing=0.1)
    return bedl.BEDL(net(), head, bedl.PAC(strength=0.3, on="perturbed") + bedl.HyperPrior(), output=0)


def assert_same_predictions(found, expected):
    for name in ("mean", "data", "model"):
        assert torch.equal(getattr(found.predict(X), name), getattr(expected.predict(X), name))


def test_a_method_comes_back_from_a_file(tmp_path):
    trained = method()
    bedl.nn.correct_variances(trained.net, X, draws=20, keep=True)
    path = trained.save(tmp_path / "model.safetensors")
    again = bedl.BEDL.load(path, net=net())
    assert_same_predictions(again, trained)
    assert again.objective == trained.objective
    assert (again.output, again.head.label_smoothing, again.training) == (0, 0.1, False)
    with pytest.raises(OutputExistsError):
        trained.save(path)
    trained.save(path, overwrite=True)


def test_folders_are_read_offline(tmp_path):
    trained = method()
    folder = trained.save_pretrained(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert config["library_name"] == "bedl"
    assert config["arguments"]["head"]["arguments"]["n_classes"] == 3
    assert_same_predictions(bedl.BEDL.from_pretrained(folder, net=net()), trained)


def test_attributes_are_saved_as_they_are_now(tmp_path):
    trained = bedl.BEDL(bedl.GaussianLinear(2, 3), bedl.Dirichlet(3))
    trained.head.nodes = 32
    again = bedl.BEDL.load(trained.save(tmp_path / "m"), net=bedl.GaussianLinear(2, 3))
    assert again.head.nodes == 32


def test_other_methods(tmp_path):
    plain = Deterministic(nn.Linear(2, 2), MeanVariance(1))
    again = Deterministic.load(plain.save(tmp_path / "plain"), net=nn.Linear(2, 2))
    assert_same_predictions(again, plain)
    several = bedl.Ensemble.of(2, method)
    path = several.save(tmp_path / "ensemble")
    assert_same_predictions(bedl.Ensemble.load(path, members=[method(), method()]), several)
    kernel = ExactGP(nn.Linear(2, 2), "regression", 1).save(tmp_path / "gp")
    with pytest.raises(ModelFileError, match=r"holds a ExactGP; read it with ExactGP\.load"):
        Deterministic.load(kernel, net=nn.Linear(2, 2))
    with pytest.raises(ModelFileError, match="kernel=…"):
        ExactGP.load(kernel)


def test_what_a_file_cannot_hold_is_asked_for(tmp_path):
    path = method().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"load\('.*', net=… \(was a Sequential\)\)"):
        bedl.BEDL.load(path)
    with pytest.raises(TypeError, match="no argument nets; there are net, head"):
        bedl.BEDL.load(path, nets=net())
    with pytest.raises(ModelFileError, match="another network"):
        bedl.BEDL.load(path, net=bedl.GaussianLinear(2, 3))
    with pytest.raises(ModelFileError, match="no file"):
        bedl.BEDL.load(tmp_path / "elsewhere")

    class Own(bedl.Dirichlet):
        pass

    own = bedl.BEDL(net(), Own(3))
    with pytest.raises(ModelFileError, match="head=…"):
        bedl.BEDL.load(own.save(tmp_path / "own"), net=net())
    again = bedl.BEDL.load(tmp_path / "own", net=net(), head=Own(3))
    assert_same_predictions(again, own)


def test_files_name_classes_of_bedl_alone(tmp_path):
    from bedl._utils.storage import rebuild

    for name in ("os.system", "bedl.methods.base.json.loads", "bedl.methods.base._save", "builtins.eval"):
        with pytest.raises((ValueError, ImportError)):
            rebuild({"class": name, "arguments": {}})


@pytest.mark.parametrize("at", [20, -20])
def test_damage_is_found(tmp_path, at):
    path = method().save(tmp_path / "model")
    whole = bytearray(path.read_bytes())
    whole[at] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ModelFileError):
        bedl.BEDL.load(path, net=net())
