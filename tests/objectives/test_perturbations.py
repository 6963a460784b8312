"""What each perturbation keeps and what it breaks."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from bedl import BEDLError
from bedl.objectives import ood_samples as c
from bedl.objectives import ood_samples as p


def images(n: int = 6, channels: int = 2, height: int = 28, width: int = 28) -> Tensor:
    return torch.rand(n, channels, height, width, generator=Generator().manual_seed(0))


@pytest.mark.parametrize("size", [(28, 28), (30, 33), (3, 5)])
def test_shuffle_blocks_moves_whole_tiles(size: tuple[int, int]) -> None:
    x = images(height=size[0], width=size[1])
    y = p.shuffle_blocks(x, Generator().manual_seed(1))
    assert not torch.equal(x, y)
    # every image keeps its pixels, channel by channel
    assert torch.equal(x.flatten(2).sort().values, y.flatten(2).sort().values)
    blocks = min(4, *size)
    h, w = size[0] // blocks, size[1] // blocks
    tiles = {tuple(t.flatten().tolist()) for t in x[0, :, : h * blocks, : w * blocks].unfold(1, h, h).unfold(2, w, w)
             .permute(1, 2, 0, 3, 4).flatten(0, 1)}  # fmt: skip
    moved = {tuple(t.flatten().tolist()) for t in y[0, :, : h * blocks, : w * blocks].unfold(1, h, h).unfold(2, w, w)
             .permute(1, 2, 0, 3, 4).flatten(0, 1)}  # fmt: skip
    assert tiles == moved


def test_shuffle_blocks_orders_images_differently() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4).repeat_interleave(7, 2).repeat_interleave(7, 3).repeat(20, 1, 1, 1)
    orders = {tuple(image[0, ::7, ::7].flatten().tolist()) for image in p.shuffle_blocks(x, Generator().manual_seed(0))}
    assert len(orders) > 15


def test_smooth_blobs_are_smooth_and_fill_the_range() -> None:
    x = images(n=50)
    y = p.smooth_blobs(x, Generator().manual_seed(0))
    assert y.shape == x.shape
    assert float(y.min()) >= float(x.min())
    assert float(y.max()) <= float(x.max())
    assert float(y.std()) > 0.1
    # neighbouring pixels of noise differ by 1/3 on average
    assert float((y[..., 1:] - y[..., :-1]).abs().mean()) < 0.1
    assert not torch.allclose(y[0], y[1], atol=0.1)


@pytest.mark.parametrize("width", [28, 20])
def test_maximum_of_two_is_at_least_as_bright(width: int) -> None:
    x = images(width=width)
    for seed in range(8):
        y = p.maximum_of_two(x, Generator().manual_seed(seed))
        assert y.shape == x.shape
        # the maximum of two pixels from [0, 1] is 2/3 on average
        assert float(y.mean()) > float(x.mean()) + 0.05
        assert set(y.flatten().tolist()) <= set(x.flatten().tolist())


def test_invert_contrast_is_its_own_inverse() -> None:
    x = images()
    y = p.invert_contrast(x)
    assert torch.allclose(p.invert_contrast(y), x, atol=1e-6)
    correlation = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1]
    assert float(correlation) < -0.99


def test_permute_columns_keeps_columns_and_breaks_rows() -> None:
    z = torch.randn(500, 1, generator=Generator().manual_seed(0))
    x = torch.cat([z, 2 * z + 0.1 * torch.randn(500, 1, generator=Generator().manual_seed(1))], 1)
    y = p.permute_columns(x, Generator().manual_seed(2))
    assert torch.equal(x.sort(0).values, y.sort(0).values)
    assert float(torch.corrcoef(x.T)[0, 1]) > 0.99
    assert abs(float(torch.corrcoef(y.T)[0, 1])) < 0.2


def test_outside_range_pushes_every_row_out() -> None:
    x = torch.randn(200, 3, generator=Generator().manual_seed(0))
    y = p.outside_range(x, Generator().manual_seed(1))
    out = (y < x.amin(0)) | (y > x.amax(0))
    assert bool(out.any(1).all())
    assert torch.equal(y[~out], x[~out])
    assert bool((y < x.amin(0)).any() & (y > x.amax(0)).any())
    width = x.amax(0) - x.amin(0)
    assert bool((y <= x.amax(0) + width).all() & (y >= x.amin(0) - width).all())


def test_one_kind_per_batch() -> None:
    seen = []

    def kind(name: str) -> p.Perturbation:
        return lambda x, generator: seen.append(name) or x  # type: ignore[func-returns-value]

    choose, generator = p.one_of(kind("a"), kind("b"), kind("c")), Generator().manual_seed(0)
    for _ in range(60):
        choose(images(1), generator)
    assert len(seen) == 60
    assert all(seen.count(name) > 8 for name in "abc")


@pytest.mark.parametrize("kind", [*p.IMAGE.kinds, p.IMAGE])
def test_a_generator_decides_everything(kind: p.Perturbation) -> None:
    x = images()
    first, second = (kind(x, Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)


def test_the_default_fits_the_shape() -> None:
    assert p.perturbation_for(torch.zeros(2, 1, 8, 8)) is p.IMAGE
    assert p.perturbation_for(torch.zeros(2, 5)) is p.TABLE
    assert p.perturbation_for(torch.zeros(2, 1)) is p.outside_range
    with pytest.raises(BEDLError, match="perturbation="):
        p.perturbation_for(torch.zeros(2, 5, 3))


# -- copies of images ---------------------------------------------------------------------------------------------
def digit() -> Tensor:
    """An L, far from any symmetry, in a frame of zeros. shape: (8, 1, 28, 28)"""
    x = torch.zeros(8, 1, 28, 28)
    x[..., 6:22, 9:12] = 1.0
    x[..., 19:22, 9:20] = 1.0
    return x


@pytest.mark.parametrize("kind", p.IMAGE.kinds, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shape", [(1, 1, 28, 28), (5, 3, 9, 14)])
def test_copies_of_images_have_their_shape_and_range(kind: p.Perturbation, shape: tuple[int, ...]) -> None:
    x = 3 + 2 * torch.rand(shape, generator=Generator().manual_seed(0))
    y = kind(x, Generator().manual_seed(1))
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert bool((y >= x.min() - 1e-5).all() & (y <= x.max() + 1e-5).all())


@pytest.mark.parametrize("kind", [c.turned, c.moved, c.warped, c.grafted, c.noisy], ids=lambda kind: kind.__name__)
def test_a_copy_is_another_picture_and_no_two_are_the_same(kind: p.Perturbation) -> None:
    x = digit()
    y = kind(x, Generator().manual_seed(0))
    assert float((y - x).abs().mean((1, 2, 3)).min()) > 0.01
    assert len({tuple(image.flatten().tolist()) for image in y}) > 3


def test_turned_keeps_the_pixels_and_turns_by_a_quarter() -> None:
    x = digit()
    quarter = [x[0].rot90(k, (-2, -1)) for k in (1, 3)]
    expected = [*quarter, *(image.flip(-1) for image in quarter)]
    for image in c.turned(x, Generator().manual_seed(0)):
        assert any(torch.equal(image, other) for other in expected)


def test_a_cut_joins_two_images() -> None:
    x = torch.arange(1.0, 7.0).reshape(6, 1, 1, 1).expand(6, 1, 12, 12)
    joined = c.joined(x, Generator().manual_seed(3))
    assert all(len(image.unique()) <= 2 for image in joined)
    assert sum(len(image.unique()) == 2 for image in joined) >= 3


def test_halves_of_one_image_do_not_fit_together_again() -> None:
    """A picture joined with itself is not itself, as its other half is turned."""
    x = digit()[:1].expand(20, 1, 28, 28)
    apart = (c.joined(x, Generator().manual_seed(0)) - x).abs().mean((1, 2, 3))
    assert float(apart.median()) > 0.3 * float(x.mean())


def test_grafts_are_parts_of_two_images_on_their_ground() -> None:
    ones = torch.ones(40, 1, 20, 20)
    ones[..., 0, 0] = 0.0  # the darkest value, which is put beyond the cuts
    share = (c.grafted(ones, Generator().manual_seed(1)) > 0.5).float().mean((1, 2, 3))
    assert 0.4 < float(share.mean()) < 0.95
    assert float(share.std()) > 0.03


def test_half_of_the_images_stay_as_sharp_as_they_are() -> None:
    x = torch.rand(400, 1, 9, 9, generator=Generator().manual_seed(0))
    same = (c.jittered(x, Generator().manual_seed(1)) == x).flatten(1).all(1)
    assert 150 < int(same.sum()) < 250


def test_an_image_that_is_jittered_is_nearly_the_same() -> None:
    x = digit()
    y = c.jittered(x, Generator().manual_seed(0), share=1.0)
    assert not any(torch.equal(*pair) for pair in zip(x, y, strict=True))
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    for axis in (rows, columns):
        middle, before = ((z * axis).sum((1, 2, 3)) / z.sum((1, 2, 3)) for z in (y, x))
        assert float((middle - before).abs().max()) < 4
    assert torch.allclose(y.sum((1, 2, 3)), x.sum((1, 2, 3)), rtol=0.35)


def test_each_kind_has_its_share_of_a_batch() -> None:
    kinds = p.each_of(*(lambda x, _, number=number: torch.full_like(x, number) for number in range(4)))
    y = kinds(torch.zeros(12, 1), Generator().manual_seed(0))
    assert y.flatten().long().bincount().tolist() == [3, 3, 3, 3]
    assert kinds(torch.zeros(2, 1), None).shape == (2, 1)  # fewer points than kinds


def test_rows_are_perturbed_as_the_images_they_are() -> None:
    x = images(n=4, channels=1, height=6, width=5)
    rows = p.as_images(p.shuffle_blocks, (6, 5))(x.flatten(1), Generator().manual_seed(3))
    assert torch.equal(rows, p.shuffle_blocks(x, Generator().manual_seed(3)).flatten(1))
