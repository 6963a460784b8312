"""Networks are called as they want to be, and the head reads what it is to read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bedl
from bedl._utils.errors import BEDLError
from bedl.methods import Batch
from bedl.nn import correct_variances
from bedl.nn.calling import call, map_parts, outputs_of, pick


class Net(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.a, self.b, self.give = nn.Linear(3, 4), nn.Linear(4, 2), give

    def forward(self, x, scale=None):
        hidden = torch.relu(self.a(x if scale is None else x * scale))
        return self.give(self.b(hidden), hidden)


class Answer:
    def __init__(self, logits, states):
        self.logits, self.states = logits, states


X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
# what the network gives, and what the user has to say about it
GIVEN = {
    "a tensor": (lambda y, h: y, None),
    "logits in a dict": (lambda y, h: {"loss": None, "logits": y, "hidden": h}, None),
    "logits of an object": (lambda y, h: Answer(y, h), None),
    "one in a tuple": (lambda y, h: (y,), None),
    "the only one in a dict": (lambda y, h: {"out": y, "loss": None}, None),
    "the second of a tuple": (lambda y, h: (h, y), 1),
    "by name": (lambda y, h: {"out": y, "hidden": h}, "out"),
    "an attribute": (lambda y, h: Answer(h, y), "states"),
    "a function": (lambda y, h: {"deep": [h, y]}, lambda given: given["deep"][1]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_head_reads_what_it_is_to_read(name):
    give, output = GIVEN[name]
    torch.manual_seed(0)
    net = bedl.bayesianize(Net(give))
    method = bedl.BEDL(net, bedl.Dirichlet(2), output=output)
    torch.manual_seed(0)
    plain = bedl.BEDL(bedl.bayesianize(Net(lambda y, h: y)), bedl.Dirichlet(2))
    y = torch.tensor([0, 1, 0, 1, 1])
    for x in (X, (X,), {"x": X}, (X, 1.0), {"x": X, "scale": torch.ones(5, 1)}):
        assert torch.equal(method.predict(x).probabilities, plain.predict(X).probabilities)
    assert torch.equal(method.loss(Batch({"x": X}, y, 5)), plain.loss(Batch(X, y, 5)))
    bedl.Ensemble([method, method]).predict((X, torch.ones(5, 1)))


def test_what_is_not_clear_is_asked_for():
    with pytest.raises(BEDLError, match=r"gives 0, 1: say which .* output="):
        pick((X, X))
    with pytest.raises(BEDLError, match=r"output='logit' is not among .* logits"):
        pick({"logits": X}, "logit")
    with pytest.raises(BEDLError, match="output="):
        pick(Answer)


def test_a_packed_sequence_is_one_input():
    packed = nn.utils.rnn.pack_sequence([X[:3], X[3:]])
    assert call(lambda x: x, packed) is packed
    assert map_parts(lambda part: part + 1, packed).data.shape == packed.data.shape


def test_copies_of_several_inputs_are_those_of_one():
    """Perturbed copies go through the network with the points, several inputs too."""
    torch.manual_seed(0)
    net = bedl.bayesianize(Net(lambda y, h: {"logits": y}))
    copies = bedl.PAC(on="perturbed", perturbation=lambda x, generator: map_parts(lambda part: 2 * part, x))
    method, y = bedl.BEDL(net, bedl.Dirichlet(2), copies), torch.tensor([0, 1, 0, 1, 1])
    torch.testing.assert_close(method.loss(Batch({"x": X}, y, 5)), method.loss(Batch(X, y, 5)))
    with pytest.raises(BEDLError, match="several inputs"):
        bedl.BEDL(net, bedl.Dirichlet(2), bedl.PAC(on="perturbed")).loss(Batch({"x": X}, y, 5))


def test_variances_are_corrected_for_several_inputs():
    torch.manual_seed(0)
    nets = [bedl.bayesianize(Net(lambda y, h: y)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, x in zip(nets, (X, {"x": X, "scale": torch.ones(5, 1)}), strict=True):
        correct_variances(net, x, draws=10)
    torch.testing.assert_close(outputs_of(nets[0], X).variance, outputs_of(nets[1], X).variance)


@pytest.mark.filterwarnings("ignore:.* is dropped")
def test_weights_that_are_computed_are_converted_without_gradients_too():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with torch.no_grad():
        assert torch.equal(bedl.bayesianize(nn.Sequential(layer))(X).loc, layer(X))


@pytest.mark.arch
def test_models_of_hugging_face_are_taken_as_they_are():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=20, num_labels=3, max_position_embeddings=16, **sizes)
    ids = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(0))
    x = {"input_ids": ids, "attention_mask": (torch.arange(6) < torch.tensor([[6], [3], [2], [5]])).long()}
    for model, y in (
        (transformers.BertForSequenceClassification(config), torch.tensor([0, 1, 2, 0])),
        (transformers.BertForTokenClassification(config), torch.where(x["attention_mask"] > 0, ids % 3, -100)),
    ):
        method = bedl.BEDL(bedl.bayesianize(model), bedl.Dirichlet(3, ignore_index=-100))
        result = bedl.fit(method, (x, y), epochs=2, validation=(x, y), fabric={"accelerator": "cpu"})
        assert result.rows[-1]["val_nll"] < 3
        assert method.predict(x).label.shape == y.shape
