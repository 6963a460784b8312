"""Image sets in torchvision's layouts, from tiny files made here; the real ones too, if they are there."""

import gzip
import io
import os
import pickle
import struct

import numpy as np
import pytest

from bedl.data import DataError, DataFileNotFoundError, load_images, open_table
from bedl.data.datasets.images import read_cifar_batch

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


def write_cifar(root, pickled: bool, protocol: int = 2):
    folder = root / ("cifar-10-batches-py" if pickled else "cifar-10-batches-bin")
    folder.mkdir()
    for number, images in enumerate([*CIFAR, CIFAR[0, :2]], 1):
        name = f"data_batch_{number}" if number < 6 else "test_batch"
        flat, labels = images.reshape(len(images), -1), [(number + i) % 10 for i in range(len(images))]
        if pickled:
            batch = {b"data": flat, b"labels": labels, b"filenames": [b"a.png"], b"batch_label": b"one of 5"}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        else:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], flat], 1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


@pytest.mark.parametrize("pickled", [True, False])
def test_cifar(tmp_path, pickled):
    write_cifar(tmp_path, pickled)
    images, labels, classes = load_images("cifar10", root=tmp_path)
    np.testing.assert_array_equal(images, CIFAR.reshape(20, 3, 32, 32))
    np.testing.assert_array_equal(labels, [(n + i) % 10 for n in range(1, 6) for i in range(4)])
    assert classes[0] == "airplane"
    assert len(load_images("cifar10", train=False, root=tmp_path)[0]) == 2
    assert open_table("cifar10:test", root=tmp_path).image_shape == (3, 32, 32)


def test_a_pickle_as_python_2_wrote_it(tmp_path):
    """CIFAR's own files: protocol 2, str keys, bytes in a str, NumPy's old module path."""
    flat = CIFAR[0].reshape(4, -1)
    out = io.BytesIO()
    out.write(
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x04M"
    )
    out.write(
        struct.pack("<H", 3072)
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    )
    out.write(
        b"K\x00tb\x89T" + struct.pack("<i", flat.size) + flat.tobytes() + b"tbU\x06labels](K\x01K\x02K\x03K\x04eu."
    )
    (tmp_path / "batch").write_bytes(out.getvalue())
    images, labels = read_cifar_batch(tmp_path / "batch")
    np.testing.assert_array_equal(images, flat)
    assert labels.tolist() == [1, 2, 3, 4]


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    folder = write_cifar(tmp_path, pickled=True)
    trace = tmp_path / "trace"
    evils = [
        Evil(os.system, f"touch {trace}"),
        Evil(eval, f"open({str(trace)!r}, 'w')"),
        Evil(open, str(trace), "w"),
        Evil(np.save, str(trace), 1),
        Evil(np.frombuffer, b"1"),
    ]
    for evil in evils:
        (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": evil, b"labels": [1]}, protocol=protocol))
        with pytest.raises(DataError, match=r"was not read: it asks for .*no part of an array"):
            load_images("cifar10", root=tmp_path)
        assert not trace.exists()


def test_object_arrays_and_wrong_shapes_are_refused(tmp_path):
    path = tmp_path / "batch"
    wrong = [
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": ["a", "b"]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [-1, 2]},
        {b"data": np.array([None]), b"labels": [1]},
        {b"labels": [1]},
        [1],
    ]
    for content in wrong:
        path.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(DataError, match="not the CIFAR-10 batch it should be"):
            read_cifar_batch(path)
    whole = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, protocol=2)
    for cut in (0, 1, 10, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="was not read"):
            read_cifar_batch(path)


def test_damaged_cifar(tmp_path):
    folder = write_cifar(tmp_path, pickled=False)
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
