"""Pictures of all kinds that Pillow reads, against what the file holds by construction."""

import struct
import zlib

import numpy as np
import pytest
import torch

from mslsq.alignment import rasters
from mslsq.alignment.png16 import SIGNATURE

Image = pytest.importorskip("PIL.Image")


def noise(*shape, high=256, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, high, shape).astype(dtype)


def png(path, rows, header, **chunks):
    """A PNG written by hand: `rows` of bytes, each with its filter in front."""
    content = [(b"IHDR", struct.pack(">IIBBBBB", *header))]
    content += [(name.encode(), data) for name, data in chunks.items()]
    content += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in content
    )
    path.write_bytes(SIGNATURE + packed)
    return path


def values(raster):
    return raster.values.movedim(0, -1).numpy()


@pytest.mark.parametrize(("bands", "colour_type"), [(1, 0), (3, 2), (2, 4), (4, 6)])
def test_sixteen_bits_stay_sixteen_bits(tmp_path, bands, colour_type):
    array = noise(20, 30, bands, high=65536, dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    raster = rasters.read_raster(png(tmp_path / "a.png", rows, (30, 20, 16, colour_type, 0, 0, 0)))
    colours = bands if bands % 2 else bands - 1
    assert raster.kind.dtype == np.uint16
    assert np.array_equal(values(raster), array[..., :colours])
    if bands % 2 == 0:
        assert np.array_equal(raster.mask.numpy(), array[..., -1] >= 32768)
    out = rasters.write_raster(tmp_path / "b.png", raster.values, raster.mask, raster.kind)
    second = rasters.read_raster(out)
    assert second.kind == raster.kind
    assert torch.equal(second.mask, raster.mask)
    assert torch.equal(second.values[:, second.mask], raster.values[:, raster.mask])


def test_all_filters_of_sixteen_bits_are_decoded(tmp_path):
    """Rows that begin with filters 0 to 4 are undone here by the standard's own formulas."""
    coded, width, bands = noise(10, 6 * 12, dtype=np.int64), 12, 3
    kinds = np.arange(10) % 5
    plain = np.zeros((11, 6 + 6 * width), np.int64)
    for y in range(10):
        for x in range(6 * width):
            left, up, corner = plain[y + 1, x], plain[y, x + 6], plain[y, x]
            guess = left + up - corner
            paeth = min((left, up, corner), key=lambda value, guess=guess: abs(guess - value))
            plain[y + 1, x + 6] = (coded[y, x] + (0, left, up, (left + up) // 2, paeth)[kinds[y]]) % 256
    expected = plain[1:, 6:].astype(np.uint8).tobytes()
    rows = np.concatenate([kinds[:, None], coded], 1).astype(np.uint8).tobytes()
    raster = rasters.read_raster(png(tmp_path / "a.png", rows, (width, 10, 16, 2, 0, 0, 0)))
    assert np.array_equal(values(raster), np.frombuffer(expected, ">u2").reshape(10, width, bands))


def test_damaged_pictures_of_sixteen_bits_are_refused(tmp_path):
    array = noise(20, 30, 3, high=65536, dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    whole = png(tmp_path / "a.png", rows, (30, 20, 16, 2, 0, 0, 0)).read_bytes()
    damaged = bytearray(whole)
    damaged[200] ^= 1
    for content in (whole[:-30], bytes(damaged)):
        (tmp_path / "b.png").write_bytes(content)
        with pytest.raises(rasters.RasterError, match=r"b\.png"):
            rasters.read_raster(tmp_path / "b.png")


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_transparent_grey_is_found_in_the_bits_of_the_file(tmp_path, depth):
    shades = np.arange(8) % 2**depth
    bits = "".join(format(shade, f"0{depth}b") for shade in shades)
    row = b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    raster = rasters.read_raster(png(tmp_path / "a.png", row, (8, 1, depth, 0, 0, 0, 0), tRNS=b"\0\1"))
    assert np.array_equal(raster.mask[0].numpy(), shades != 1)
    assert np.array_equal(raster.values[0, 0].numpy(), shades * 255 // (2**depth - 1))
    assert raster.kind.alpha


@pytest.mark.parametrize(("depth", "dtype"), [(8, ">u1"), (16, ">u2")])
def test_a_transparent_colour_is_masked(tmp_path, depth, dtype):
    array = np.array([[[7, 8, 9], [7, 8, 10], [0, 0, 0]]])
    row = b"\0" + array.astype(dtype).tobytes()
    raster = rasters.read_raster(
        png(tmp_path / "a.png", row, (3, 1, depth, 2, 0, 0, 0), tRNS=struct.pack(">HHH", 7, 8, 9))
    )
    assert raster.mask.tolist() == [[False, True, True]]
    assert values(raster).tolist() == array.tolist()


def test_palettes_are_colours(tmp_path):
    colours = noise(20, 30, 3) // 64 * 64
    picture = Image.fromarray(colours).quantize(256)
    picture.save(tmp_path / "a.png")
    raster = rasters.read_raster(tmp_path / "a.png")
    assert raster.mask.all()
    assert np.array_equal(values(raster), np.asarray(picture.convert("RGB")))
    picture.save(tmp_path / "b.png", transparency=int(np.asarray(picture)[0, 0]))
    raster = rasters.read_raster(tmp_path / "b.png")
    assert np.array_equal(raster.mask.numpy(), np.asarray(picture) != np.asarray(picture)[0, 0])


def test_grey_with_alpha_and_one_bit(tmp_path):
    array = noise(20, 30, 2)
    Image.fromarray(array, "LA").save(tmp_path / "a.png")
    raster = rasters.read_raster(tmp_path / "a.png")
    assert np.array_equal(values(raster)[..., 0], array[..., 0])
    assert np.array_equal(raster.mask.numpy(), array[..., 1] >= 128)
    Image.fromarray(array[..., 0] > 100).save(tmp_path / "b.png")
    raster = rasters.read_raster(tmp_path / "b.png")
    assert np.array_equal(values(raster)[..., 0], 255 * (array[..., 0] > 100))
    assert raster.kind.dtype == np.uint8


def test_inks_are_read_and_written_as_colours(tmp_path):
    array = noise(16, 16, 4)
    array[:] = array[:1, :1]  # one colour, which JPEG keeps
    Image.fromarray(array, "CMYK").save(tmp_path / "a.jpg", quality=100)
    raster = rasters.read_raster(tmp_path / "a.jpg")
    c, m, y, k = array[0, 0] / 255
    expected = 255 * (1 - np.array([c, m, y])) * (1 - k)
    assert raster.mask.all()
    assert np.abs(values(raster) - expected).max() <= 3
    second = rasters.read_raster(rasters.write_raster(tmp_path / "b.jpg", raster.values, raster.mask, raster.kind))
    assert np.abs(values(second) - expected).max() <= 6


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_pictures_are_upright_as_exif_says(tmp_path, orientation, suffix):
    """Pillow's own `exif_transpose` is the judge."""
    from PIL import ImageOps

    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(noise(5, 7, 3)).save(tmp_path / f"a{suffix}", exif=exif)
    with Image.open(tmp_path / f"a{suffix}") as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    assert np.array_equal(values(rasters.read_raster(tmp_path / f"a{suffix}")), expected)


def test_several_pictures_in_one_file_are_refused(tmp_path):
    frames = [Image.fromarray(noise(8, 8, 3) // k) for k in (1, 2)]
    for name in ("a.png", "a.webp"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        with pytest.raises(rasters.RasterError, match="holds 2"):
            rasters.read_raster(tmp_path / name)


def test_a_wrong_suffix_does_not_decide_what_is_written(tmp_path):
    Image.fromarray(noise(8, 8, 4), "RGBA").save(tmp_path / "a.jpg", format="PNG")
    raster = rasters.read_raster(tmp_path / "a.jpg")
    assert raster.kind.suffix == ".png"
    assert rasters.write_raster(tmp_path / "b.jpg", raster.values, raster.mask, raster.kind).suffix == ".png"
    Image.fromarray(noise(8, 8)).save(tmp_path / "c.png", format="GIF")
    with pytest.raises(rasters.RasterError, match="is a GIF"):
        rasters.read_raster(tmp_path / "c.png")


def test_webp_and_portable_pixmaps_are_written_without_loss(tmp_path):
    array = noise(20, 30, 3)
    Image.fromarray(array).save(tmp_path / "a.webp", lossless=True)
    Image.fromarray(array).save(tmp_path / "a.ppm")
    Image.fromarray(array[..., 0]).save(tmp_path / "a.pgm")
    Image.fromarray(noise(20, 30, high=65536, dtype=np.uint16)).save(tmp_path / "deep.pgm")
    Image.fromarray(array).save(tmp_path / "a.bmp")
    for name in ("a.webp", "a.ppm", "a.pgm", "deep.pgm", "a.bmp"):
        raster = rasters.read_raster(tmp_path / name)
        out = rasters.write_raster(tmp_path / f"again-{name}", raster.values, raster.mask, raster.kind)
        assert out.name == f"again-{name}"
        assert torch.equal(rasters.read_raster(out).values, raster.values), name
    (tmp_path / "deep.ppm").write_bytes(b"P6 # 16 bits\n2 1\n65535\n" + bytes(12))
    with pytest.raises(rasters.RasterError, match="16 bits"):
        rasters.read_raster(tmp_path / "deep.ppm")
