"""Image sets as they are published, from tiny files made here; the real ones too, if they are there."""

import gzip
import os
import struct

import numpy as np
import pytest

from bedl.data import DataError, DataFileNotFoundError, load_images, open_table

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 1, 1, 2, 8], dtype=np.uint8)
CIFAR = RNG.integers(0, 256, (5, 4, 3, 32, 32), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(root, folder="MNIST", packed=True, images=None, labels=None, part="train"):
    raw = root / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    files = {
        "images-idx3": idx(IMAGES) if images is None else images,
        "labels-idx1": idx(LABELS) if labels is None else labels,
    }
    for name, content in files.items():
        path = raw / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return raw


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_idx_files(tmp_path, monkeypatch, name, folder, packed):
    write_mnist(tmp_path, folder, packed)
    write_mnist(tmp_path, folder, packed, idx(IMAGES[:2]), idx(LABELS[:2]), part="t10k")
    monkeypatch.setenv("BEDL_DATA", str(tmp_path))
    images, labels, classes = load_images(name)
    assert images.shape == (7, 1, 28, 28)
    assert labels.dtype == np.int64
    assert len(classes) == 10
    np.testing.assert_array_equal(images[:, 0], IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert images.flags.writeable
    assert len(load_images(name, train=False)[0]) == 2


def test_as_table(tmp_path):
    write_mnist(tmp_path, "FashionMNIST")
    table = open_table("fashion_mnist:train", root=tmp_path)
    assert table.image_shape == (28, 28)
    assert table.columns[0] == "pixel_0"
    assert table.columns[783:] == ["pixel_783", "target"]
    batch = next(table.batches())
    assert batch.column("target").to_pylist()[:3] == ["Dress", "T-shirt/top", "Ankle boot"]
    pixels = np.stack([batch.column(i).to_numpy() for i in range(784)], 1)
    np.testing.assert_array_equal(pixels, IMAGES.reshape(7, -1))


DAMAGED = {
    "empty": (b"", "does not begin like an IDX file"),
    "magic": (b"\0\0\x09\x03" + idx(IMAGES)[4:], "does not begin like an IDX file"),
    "axes": (idx(LABELS), "does not begin like an IDX file"),
    "truncated": (idx(IMAGES)[:-1], "5503 bytes where its header says 5504"),
    "too long": (idx(IMAGES) + b"\0", "5505 bytes where its header says 5504"),
    "boast": (b"\0\0\x08\x03" + b"\xff" * 12, "16 bytes where its header says 7"),
    "count": (idx(IMAGES[:-1]), "6 images but 7 labels"),
}


@pytest.mark.parametrize("content, message", DAMAGED.values(), ids=DAMAGED)
def test_damaged_idx_files(tmp_path, content, message):
    write_mnist(tmp_path, images=content)
    with pytest.raises(DataError, match=f"damaged: .*{message}.*bedl data fetch mnist"):
        load_images("mnist", root=tmp_path)


def test_damaged_labels_and_gzip(tmp_path):
    raw = write_mnist(tmp_path, labels=idx(LABELS + 2))
    with pytest.raises(DataError, match="labels are not 0 to 9"):
        load_images("mnist", root=tmp_path)
    path = raw / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="damaged"):
        load_images("mnist", root=tmp_path)


def test_absent(tmp_path):
    with pytest.raises(DataFileNotFoundError, match=r"is missing.*BEDL_DATA.*bedl data fetch cifar10"):
        load_images("cifar10", root=tmp_path)
    with pytest.raises(DataFileNotFoundError, match=r"is missing.*bedl data fetch mnist"):
        load_images("mnist", root=tmp_path)
    with pytest.raises(DataError, match="image sets are mnist, fashion_mnist, cifar10"):
        load_images("imagenet", root=tmp_path)


def write_cifar(root):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for number, images in enumerate([*CIFAR, CIFAR[0, :2]], 1):
        name = f"data_batch_{number}" if number < 6 else "test_batch"
        flat, labels = images.reshape(len(images), -1), [(number + i) % 10 for i in range(len(images))]
        rows = np.concatenate([np.array(labels, np.uint8)[:, None], flat], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def test_cifar(tmp_path):
    write_cifar(tmp_path)
    images, labels, classes = load_images("cifar10", root=tmp_path)
    np.testing.assert_array_equal(images, CIFAR.reshape(20, 3, 32, 32))
    np.testing.assert_array_equal(labels, [(n + i) % 10 for n in range(1, 6) for i in range(4)])
    assert classes[0] == "airplane"
    assert len(load_images("cifar10", train=False, root=tmp_path)[0]) == 2
    assert open_table("cifar10:test", root=tmp_path).image_shape == (3, 32, 32)


def test_damaged_cifar(tmp_path):
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(DataError, match="3072 bytes are no multiple of 3073"):
        load_images("cifar10", root=tmp_path)
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(DataFileNotFoundError, match=r"data_batch_2.bin is missing"):
        load_images("cifar10", root=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("BEDL_DATA"), reason="BEDL_DATA is not set")
@pytest.mark.parametrize(
    "name, shape", [("mnist", (1, 28, 28)), ("fashion_mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))]
)
def test_the_real_sets(name, shape):
    for train, count in ((True, 60_000), (False, 10_000)):
        images, labels, _ = load_images(name, train)
        assert images.shape == (50_000 if name == "cifar10" and train else count, *shape)
        assert set(labels) == set(range(10))
