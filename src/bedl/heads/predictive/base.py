"""What every prediction offers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import TypeVar

from bedl.evaluation.tasks._maps import place_columns

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


P = TypeVar("P", bound="Predictive")
# What a head or a method predicts: BEDL(net, Dirichlet(3)) is a BEDL[CategoricalPredictive].
Prediction = TypeVar("Prediction", bound="Predictive", default="Predictive", covariant=True)


class PaperSplit(NamedTuple):
    """Two parts of a variance, as the paper's appendix has them. shapes: (*batch, D or C)"""

    aleatoric: Tensor
    epistemic: Tensor


class Predictive:
    """Base of the predictions: a batch of N, each with D targets or C classes.

    A subclass is a dataclass of tensors whose leading dimensions are the batch.

    Attributes:
        task: the name of what is predicted, such as "regression".
        output_names: the quantities that leave Python by name; see `outputs`.
        names: of the classes, or of the targets, where an estimator knows them; else tables number them.
        held_out: of classes the scores of labels that were not learned from, where an estimator has some; they
            calibrate prediction sets (`bedl.tasks.set_threshold`).
    """

    task: ClassVar[str]
    output_names: ClassVar[tuple[str, ...]]
    names: Sequence[Any] | None = None
    held_out: Any = None

    if TYPE_CHECKING:  # a field of one subclass is a property of another

        @property
        def mean(self) -> Tensor: ...

        @property
        def data(self) -> Tensor: ...

        @property
        def distributional(self) -> Tensor: ...

        @property
        def model(self) -> Tensor: ...

        @property
        def variance(self) -> Tensor: ...

    # -- three parts of the uncertainty, which add up ---------------------------------------------
    @property
    def total(self) -> Tensor:
        """All uncertainty: ``data + distributional + model``. shape: (*batch, D), for classes (*batch)"""
        return self.data + self.distributional + self.model

    @property
    def aleatoric(self) -> Tensor:
        """What more data would not remove: ``data``. shape: (*batch, D), for classes (*batch)"""
        return self.data

    @property
    def epistemic(self) -> Tensor:
        """What is not known: ``distributional + model``. shape: (*batch, D), for classes (*batch)"""
        return self.distributional + self.model

    def paper_split(self) -> PaperSplit:
        """The two parts of the paper's appendix, as variances: its aleatoric part includes what the evidence lacks.

        M. Haussmann, S. Gerwinn, M. Kandemir, "Bayesian Evidential Deep Learning with PAC Regularization", AABI 2020.
        """
        raise NotImplementedError

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target, all uncertainty together. shape: (*batch, D or C)"""
        return self.variance.sqrt()

    # -- information, in nats --------------------------------------------------------------------
    @property
    def entropy(self) -> Tensor:
        """Entropy of the prediction. shape: (*batch)"""
        raise NotImplementedError

    # -- density ---------------------------------------------------------------------------------
    def check_targets(self, y: Tensor) -> Tensor:
        """Targets that the prediction could be of, or an error that says what is wrong with them. y: any shape"""
        return y

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-probability (density) of the targets, per point. shape: (*batch)"""
        raise NotImplementedError

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws of the target. shape: (n, *batch) or (n, *batch, D)"""
        raise NotImplementedError

    def mixed(self) -> Predictive:
        """The equal mixture of the predictions along the first dimension: of members, or of draws of a network."""
        raise TypeError(f"there is no rule for mixtures of {type(self).__name__}: write its mixed()")

    def marginal(self) -> Predictive:
        """The prediction where an input is unknown, of those for its possible values along the first dimension.

        The parts are their means, and what they disagree about is ``distributional``: it is the missing evidence.
        """
        raise TypeError(f"{type(self).__name__} cannot be averaged over an unknown input: write its marginal()")

    # -- a container of tensors ------------------------------------------------------------------
    def _map(self: P, function: Any) -> P:
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        mapped = type(self)(*(function(getattr(self, name)) for name in names))
        mapped.names, mapped.held_out = self.names, self.held_out
        return mapped

    def __getitem__(self: P, index: Any) -> P:
        """Some of the points: ``p[3]``, ``p[3:5]``, ``p[mask]``."""
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            raise TypeError("a prediction is indexed by point: p[3], p[3:5] or p[mask]")
        return self._map(lambda leaf: leaf[index])

    def __len__(self) -> int:
        return len(self.mean)

    @classmethod
    def concatenate(cls: type[P], parts: Sequence[P]) -> P:
        """One prediction of the points of several, in their order."""
        kinds = sorted({type(part).__name__ for part in parts})
        if len(kinds) != 1:
            raise ValueError(f"concatenate takes predictions of one kind, at least one, not {kinds}")
        names = [field.name for field in dataclasses.fields(parts[0])]  # type: ignore[arg-type]
        whole = type(parts[0])(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
        whole.names, whole.held_out = parts[0].names, parts[0].held_out
        return whole

    def to(self: P, *args: Any, **kwargs: Any) -> P:
        """The same on another device or in another precision, as `torch.Tensor.to`."""
        return self._map(lambda leaf: leaf.to(*args, **kwargs))

    def detach(self: P) -> P:
        """The same without gradients."""
        return self._map(lambda leaf: leaf.detach())

    def outputs(self) -> dict[str, Tensor]:
        """What tables, pages and exported models are made of, by the names that the task gives it."""
        return {name: getattr(self, name) for name in self.output_names}

    def _columns(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Every quantity as a NumPy array, by name.

        Classes: ``label``, ``probabilities``, ``total``, ``aleatoric``, ``epistemic``, ``data``, ``distributional``,
        ``model`` in nats, ``vacuity``. Targets: ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``data_std``,
        ``distributional_std``, ``model_std``, ``lower_90``, ``upper_90``.
        """
        return {name: value.detach().cpu().numpy() for name, value in self._columns().items()}

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """The same as a table, a row per point, and a column per entry of a quantity (``mean_0``, ``mean_1``; with
        `names` ``probabilities_red``, ``probabilities_blue``, and the label is one of them).

        Of dense outputs a row per place, in long form: ``point`` says which point it is of, ``row`` and ``column``
        where in its map it is (``position`` in a sequence, ``slice``, ``row`` and ``column`` in a volume).

        Of classes whose estimator has labels that were not learned from, ``prediction_set`` and ``set_size`` as well,
        of the sets that hold the label with probability 90 %.

        Args:
            index: of the rows, such as that of the table that was predicted for: ``to_frame(X.index)``.
        """
        import numpy as np

        try:
            import pandas
        except ImportError:
            raise ImportError("to_frame() needs pandas: pip install pandas") from None
        batch = self.mean.shape[:-1]
        columns: dict[str, Any] = place_columns(tuple(batch))
        quantities = self.to_numpy()
        for name, values in quantities.items():
            values = values.reshape(-1, *values.shape[len(batch) :])
            if values.ndim == 1:
                known = name == "label" and self.names is not None
                columns[name] = np.asarray(self.names)[values] if known else values
            elif values.shape[-1] == 1:
                columns[name] = values[:, 0]
            else:
                each = self.names if self.names is not None else range(values.shape[-1])
                columns.update({f"{name}_{entry}": values[:, i] for i, entry in enumerate(each)})
        if self.held_out is not None:
            from bedl.evaluation.tasks import with_intervals
            from bedl.evaluation.tasks.classification import set_columns

            sets, p = with_intervals(quantities, self.held_out, 0.9)["set"], quantities["probabilities"]
            columns |= set_columns(sets, p, range(p.shape[1]) if self.names is None else self.names)
        return pandas.DataFrame(columns, index=index)

    def _repr_html_(self) -> str:
        """For notebooks: the uncertainty components of the points, and their intervals or entropies."""
        from bedl.evaluation import tasks
        from bedl.evaluation.report.page import preview

        found = self.outputs()
        if hasattr(self, "interval"):
            found = {**found, **dict(zip(("lower", "upper"), self.interval(0.9), strict=True))}
        quantities = {name: values.detach().cpu().numpy() for name, values in found.items()}
        task = tasks.get(self.task)
        if self.mean.ndim > 2 or not len(self) or (task.column == "number" and self.mean.shape[-1] > 1):
            return str(self.to_frame().head(20).to_html())  # maps, nothing, several targets
        return preview(dataclasses.replace(task.results(quantities, names=self.names), title="Predictions"))


def register(cls: type) -> None:
    """Make a prediction a pytree node."""
    names = [field.name for field in dataclasses.fields(cls)]

    def unflatten(leaves: Any, context: None) -> Any:
        empty: Any = object.__new__(cls)  # no __init__: trees are rebuilt with placeholders too
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(empty, name, leaf)
        return empty

    pytree.register_pytree_node(
        cls,
        lambda value: ([getattr(value, name) for name in names], None),
        unflatten,
        serialized_type_name=f"bedl.{cls.__name__}",
        to_dumpable_context=lambda context: "",
        from_dumpable_context=lambda text: None,
        flatten_with_keys_fn=lambda value: ([(pytree.GetAttrKey(n), getattr(value, n)) for n in names], None),
    )
