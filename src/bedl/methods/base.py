"""What a method is to the rest of the package: something that predicts, and one of three ways to learn.

Training, replicas, ensembles, estimators, export and benches ask for what stands here and know no concrete method.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, overload

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from typing_extensions import Self

from bedl._utils.errors import ModelFileError
from bedl._utils.io import check_writable, in_order, write_atomically
from bedl._utils.storage import RecordsArguments, arguments_of, checksum, make, missing_in, rebuild
from bedl.heads.predictive import Prediction
from bedl.moments import Moments
from bedl.nn import check_not_cached
from bedl.nn.calling import count_points, has_parts, map_parts
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.heads import Head
    from bedl.objectives import Sum

FitMode = Literal["gradient", "direct", "members"]


def _batches(x: Any, size: int) -> Iterator[Any]:
    if size < 1:
        raise ValueError(f"predict: batch_size must be at least 1, not {size}")
    if not isinstance(x, (Tensor, Moments)) and not has_parts(x):
        raise TypeError(f"predict: batch_size= cuts tensors into batches; a {type(x).__name__} has its own")
    for start in range(0, count_points(x), size):
        yield map_parts(lambda part, start=start: part[start : start + size], x)  # type: ignore[misc]


class Method(RecordsArguments, nn.Module, Generic[Prediction]):
    """Base of the methods: `forward` predicts, and the method learns in the way it defines.

    - **"gradient"**: by steps on `batch_loss(batch)`, a mean over the points of a batch: `batch.mean(values)` is that
      mean, weights and padding considered. A loss that is a *function* of means, such as a root, is written as
      `statistics(batch)`, the means, and `combine(statistics, n_train)`, the function: so it is exact over several
      processes and accumulated batches, too.
    - **"direct"**: all at once, with `fit(x, y)`; with `fit(x, y, weight)`, if points may count differently.
    - **"members"**: in its members, which learn independently of each other.

    Everything else has a default.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import Normal
        >>> from bedl.methods import Batch, Method
        >>> class MeanAndVariance(Method):
        ...     def __init__(self, net):
        ...         super().__init__()
        ...         self.net, self.head = net, Normal(1)
        ...     def forward(self, x):
        ...         return self.head(self.net(x))
        ...     def batch_loss(self, batch):
        ...         return -batch.mean(self(batch.x).log_prob(batch.y))
        >>> method = MeanAndVariance(nn.Linear(3, 2))
        >>> method.fit_mode, method.additive, method.predict(torch.zeros(5, 3)).mean.shape
        ('gradient', True, torch.Size([5, 1]))
        >>> method.loss(torch.zeros(5, 3), torch.zeros(5), n_train=100).shape
        torch.Size([])
    """

    fit_mode: ClassVar[FitMode | None] = None
    uses_epoch: ClassVar[bool] = False  # whether the loss changes in the course of training and asks for `batch.epoch`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "loss" in vars(cls):  # training would not call it
            raise TypeError(f"{cls.__name__} defines loss, which training does not call: define batch_loss(batch)")
        own: dict[FitMode, bool] = {
            "members": cls.members is not Method.members,
            "direct": cls.fit is not Method.fit,
            "gradient": cls.batch_loss is not Method.batch_loss or cls.statistics is not Method.statistics,
        }
        cls.fit_mode = next((way for way, is_own in own.items() if is_own), None)

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Any) -> Prediction:
        """The prediction for each point, in the module's present mode and with gradients. x: shape (n, *input)"""
        raise NotImplementedError(f"{type(self).__name__} has no forward(x) that gives a prediction")

    def predict(self, x: Any, *, batch_size: int | None = None) -> Prediction:
        """The prediction for each point, in evaluation mode and without gradients.

        Args:
            x: the inputs, as the network takes them; several in a tuple or a dict. shape: (n, *input)
                Or a DataLoader, or another iterable of batches, each of inputs, or a tuple or list that begins with
                them: ``(x, y)``, ``((one, other), y)``.
            batch_size: how many points go through the network at a time; None: all, or a loader's batches. Batches are
                moved to the device of the parameters.
        """
        if batch_size is not None:
            x = _batches(x, batch_size)
        elif isinstance(x, (Tensor, Moments, Mapping)) or has_parts(x) or hasattr(x, "__array__"):
            return self._predict(x)
        elif isinstance(x, Iterable):
            x = (batch[0] if isinstance(batch, (tuple, list)) else batch for batch in x)
        else:
            return self._predict(x)
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        parts = [self._predict(map_parts(lambda part: part.to(device), batch)) for batch in x]
        if not parts:
            raise ValueError("predict: there are no points")
        return type(parts[0]).concatenate(parts)

    def _predict(self, x: Any) -> Prediction:
        if hasattr(x, "__array__") and not isinstance(x, (Tensor, Moments)):
            raise TypeError(
                f"predict takes a tensor, not {type(x).__module__}.{type(x).__name__}: "
                "torch.as_tensor(x, dtype=torch.float32), scaled as in training. Estimators, such as "
                "bedl.BEDLRegressor, take arrays and tables and scale them"
            )
        training = [module for module in self.modules() if module.training]
        if training:  # else there is nothing to switch, which takes longer than a small network
            self.eval()
        try:
            with torch.no_grad():
                prediction: Prediction = self(x)
                return prediction
        finally:
            for module in training:
                module.training = True

    # -- learning by steps ------------------------------------------------------------------------
    @overload
    def loss(self, x: Batch, /) -> Tensor: ...

    @overload
    def loss(self, x: Any, y: Tensor, /, *, n_train: int | Tensor, weight: Tensor | None = None) -> Tensor: ...

    def loss(
        self, x: Any, y: Tensor | None = None, /, *, n_train: int | Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """What is to be minimised, for training loops of your own. shape: ()

        Args:
            x: inputs, as the network takes them; or a `Batch`, which holds everything. shape: (n, *input)
            y: targets. shape: (n,) or (n, D), of dense outputs (n, *places)
            n_train: how many points the whole training set has, by which regularisers weigh themselves.
            weight: how much each point counts; None: all the same. shape: (n,) or (n, *places)

        Example:
            >>> import bedl, torch
            >>> method = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1))
            >>> optimizer = torch.optim.Adam(method.parameters(), lr=0.01)
            >>> x = torch.randn(100, 3)
            >>> for rows in torch.randperm(100).split(20):
            ...     optimizer.zero_grad()
            ...     method.loss(x[rows], x[rows, 0], n_train=100).backward()
            ...     _ = optimizer.step()
        """
        if isinstance(x, Batch):
            return self.batch_loss(x)
        if y is None or n_train is None:
            raise TypeError("loss takes (x, y, n_train=…), n_train being the size of the training set, or a Batch")
        return self.batch_loss(Batch(x, y, n_train, weight))

    def batch_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch by itself, for methods to define; call `loss`. shape: ()"""
        if self.fit_mode != "gradient":
            raise TypeError(f"{type(self).__name__} takes no gradient steps: its fit_mode is {self.fit_mode!r}")
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            check_not_cached(self, "loss, with gradients")
        return self.combine(self.statistics(self.prepare(batch)), batch.n_train)

    def prepare(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Draw what is random about this batch, so that it can be looked at twice."""
        return batch

    @property
    def prepares_batched(self) -> bool:
        """Whether `prepare` also takes the batches of many such methods at once, stacked along a dimension in front."""
        return False

    def statistics(self, batch: Batch) -> Tensor:
        """The means over a prepared batch that the loss is a function of. shape: (k,)"""
        return self.batch_loss(batch).reshape(1)

    def combine(self, statistics: Tensor, n_train: int | Tensor) -> Tensor:
        """The loss, of the means over all batches; parameters enter through them alone.

        Args:
            statistics: shape (k,)
            n_train: size of the training set. shape: ()
        """
        return statistics.sum()

    @property
    def additive(self) -> bool:
        """Whether losses of parts of a batch may be averaged; not so under a root."""
        return type(self).combine is Method.combine

    @property
    def parts(self) -> tuple[nn.Module, Head, Sum] | None:
        """Network, head and objective, where the loss is that objective of those two; None: where it is not."""
        return None

    def on_fit_end(self, batches: Iterable[Batch], held_out: Iterable[Batch] = ()) -> None:
        """Called once when the steps have been taken, without gradients, with the points of the training set in parts,
        and those of the validation set, if there is one: for what follows from the trained network in closed form, such
        as a posterior of its last layer.
        """

    @property
    def has_fit_end(self) -> bool:
        """Whether there is something to conclude: such a method learns from all points at once."""
        return type(self).on_fit_end is not Method.on_fit_end

    # -- learning otherwise -----------------------------------------------------------------------
    def fit(self, x: Tensor, y: Tensor) -> Any:
        """Learn from all points at once. x: shape (n, *input); y: shape (n,) or (n, D)"""
        raise TypeError(
            f"{type(self).__name__} has fit_mode {self.fit_mode!r}: train it with bedl.fit(method, (x, y), …)"
        )

    @property
    def takes_weights(self) -> bool:
        """Whether a method that learns by itself knows how much each point counts."""
        return "weight" in inspect.signature(self.fit).parameters

    @property
    def members(self) -> Sequence[Method]:
        """The methods that learn: this one, unless it is made of several."""
        return [self]

    def summary(self) -> str:
        """What was learned, in a few words, for people; "" where there is nothing to say."""
        return ""

    # -- files --------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the method as one safetensors file: its weights, and what it was made with as JSON.

        Args:
            path: the file to write; it appears whole or not at all.
            overwrite: whether an existing file may be replaced.

        Example:
            >>> import tempfile, bedl, torch
            >>> from torch import nn
            >>> make_net = lambda: bedl.bayesianize(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)))
            >>> method = bedl.BEDL(make_net(), bedl.Dirichlet(3), bedl.PAC(strength=0.1))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     again = bedl.BEDL.load(method.save(f"{folder}/model.safetensors"), net=make_net())
            >>> again.head, torch.equal(again.predict(torch.ones(1, 2)).mean, method.predict(torch.ones(1, 2)).mean)
            (Dirichlet(n_classes=3), True)
        """
        return _save(self, path, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], /, **arguments: Any) -> Self:
        """Read a method that was written with `save`. Nothing in the file is run.

        Args:
            path: the file.
            arguments: of the constructor that no file can hold, above all a network that is built as the saved one
                was; others replace what the file says.
        """
        return _load(cls, path, arguments)

    def save_pretrained(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a folder as repositories of models have it: `model.safetensors`, as of `save`, and `config.json`."""
        return _save_folder(self, folder, overwrite)

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], /, *, revision: str | None = None, **arguments: Any
    ) -> Self:
        """Read a folder that was written with `save_pretrained`, or a repository of the Hugging Face Hub.

        Args:
            source: the folder, or the repository's name, such as ``"someone/model"``, which needs `huggingface_hub`.
            revision: of the repository: a branch, tag or commit.
            arguments: as for `load`.
        """
        return _load(cls, _fetch(source, revision), arguments)


# Methods as one safetensors file: weights as tensors, the rest as JSON in its header. Nothing is unpickled.


FORMAT, SCHEMA = "bedl.methods", 1
FILE, CONFIG = "model.safetensors", "config.json"  # of a folder


def _save(method: Method, path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Write a method, all of it or nothing."""
    path = Path(path)
    check_writable(path, overwrite)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in method.state_dict().items()}
    text = json.dumps(_content(method))
    header = {"format": FORMAT, "schema": str(SCHEMA), "bedl": _version(), "method": text}
    header["sha256"] = checksum(tensors, text)
    write_atomically(path, in_order(safetensors.torch.save(tensors, header)))
    return path


def _save_folder(method: Method, folder: str | os.PathLike[str], overwrite: bool) -> Path:
    """The same in a folder, as repositories of models have it: with its description as a file of its own."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / CONFIG, overwrite)
    _save(method, folder / FILE, overwrite)
    config = {**_content(method), "library_name": "bedl", "bedl": _version()}
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())
    return folder


def _fetch(source: str | os.PathLike[str], revision: str | None) -> Path:
    """The file in a folder, or in a repository of the Hugging Face Hub."""
    if os.path.isdir(source):
        return Path(source) / FILE
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModelFileError(f"there is no folder {source}; for repositories: pip install huggingface_hub") from None
    return Path(hf_hub_download(str(source), FILE, revision=revision))


def _load(cls: type[Method], path: str | os.PathLike[str], given: Mapping[str, Any]) -> Any:
    """Read a method of this class, with arguments that the file cannot hold."""
    path = Path(path)
    content, tensors = _read(path)
    name, stored = content["class"].rpartition(".")[2], content["arguments"]
    if name != cls.__name__:
        raise ModelFileError(f"{path} holds a {name}; read it with {name}.load")
    if unknown := sorted(set(given) - set(stored)):
        raise TypeError(f"{cls.__name__}.load: there is no argument {unknown[0]}; there are {', '.join(stored)}")
    missing = {key: what for key, value in stored.items() if key not in given and (what := missing_in(value))}
    if missing:
        texts = ", ".join(f"{key}=… (was a {what})" for key, what in missing.items())
        raise ModelFileError(
            f"a file cannot hold code: {cls.__name__}.load({str(path)!r}, {texts}) needs what is built as that was"
        )
    try:
        arguments = {key: given[key] if key in given else rebuild(value) for key, value in stored.items()}
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise ModelFileError(f"{path} is damaged ({type(error).__name__}: {error}); save the method again") from None
    method = make(cls, arguments)
    try:
        method.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelFileError(f"{path} holds the weights of another network than the one given: {error}") from None
    return method.eval()


def _content(method: Method) -> dict[str, Any]:
    cls = type(method)
    return {"class": f"{cls.__module__}.{cls.__qualname__}", "arguments": arguments_of(method)}


def _version() -> str:
    from bedl import __version__

    return __version__


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        whole = path.read_bytes()
        tensors = safetensors.torch.load(whole)
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")]).get("__metadata__", {})
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}") from None
    except (safetensors.SafetensorError, OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not a whole model file ({error}); save the method again") from None
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a method that bedl saved")
    schema, text = header.get("schema", ""), header.get("method", "")
    if not (schema.isascii() and schema.isdigit()) or int(schema) > SCHEMA:
        raise ModelFileError(
            f"{path} was saved by bedl {header.get('bedl')} in version {schema} of the format, and this bedl "
            f"({_version()}) reads up to {SCHEMA}; upgrade bedl to read it"
        )
    if header.get("sha256") != checksum(tensors, text):
        raise ModelFileError(f"the contents of {path} do not match their checksum; save the method again")
    return json.loads(text), tensors
