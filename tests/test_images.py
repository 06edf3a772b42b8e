"""From files to pixels: every rule of ``images.py`` by exact values, and what a header tells."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from client_app.data.images import Header, header, pixels
from tests.image_files import encode, grey


def corner(content: bytes, channels: int = 3) -> list[int]:
    return pixels(content, channels, 0)[:, 0, 0].tolist()


@pytest.mark.parametrize(("content", "as_colour", "as_grey"), [
    (encode(7, "L"), [7, 7, 7], [7]),
    (encode(1, "1"), [255, 255, 255], [255]),
    (encode(0, "1"), [0, 0, 0], [0]),
    (encode((200, 100, 50), "RGB"), [200, 100, 50], [124]),  # 0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2
    (encode((200, 100, 50, 0), "RGBA"), [255, 255, 255], [255]),
    (encode((200, 100, 50, 255), "RGBA"), [200, 100, 50], [124]),
    (encode((0, 0, 0, 51), "RGBA"), [204, 204, 204], [204]),  # a fifth black over white
    (encode((0, 51), "LA"), [204, 204, 204], [204]),
    (encode(10, "L", transparency=10), [255, 255, 255], [255]),
    (encode((1, 2, 3), "RGB", transparency=(1, 2, 3)), [255, 255, 255], [255]),
    (encode((0, 255, 255, 0), "CMYK", "TIFF"), [255, 0, 0], [76]),
    (encode(np.full((4, 4), 0x1234, np.uint16)), [0x12] * 3, [0x12]),
    (encode(np.full((4, 4), 65535, np.uint16)), [255] * 3, [255]),
    (encode(np.full((4, 4), 70000, np.int32), form="TIFF"), [255] * 3, [255]),
    (encode(np.full((4, 4), -5, np.int32), form="TIFF"), [0] * 3, [0]),
])
def test_modes_become_bytes_by_the_stated_rules(content: bytes, as_colour: list[int], as_grey: list[int]) -> None:
    assert corner(content) == as_colour and corner(content, channels=1) == as_grey
    assert pixels(content, 3, 0).dtype == np.uint8 and pixels(content, 3, 0).flags.c_contiguous


def test_a_palette_is_looked_up_and_its_transparent_entry_is_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([9, 9, 9, 10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 2)
    opaque, out = BytesIO(), BytesIO()
    image.save(opaque, "PNG")
    image.save(out, "PNG", transparency=2)
    assert pixels(opaque.getvalue(), 3, 0)[:, 0, :2].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    assert pixels(out.getvalue(), 3, 0)[:, 0, :2].T.tolist() == [[10, 20, 30], [255, 255, 255]]


def test_of_several_frames_the_first_counts() -> None:
    out = BytesIO()
    Image.new("L", (4, 4), 30).save(out, "TIFF", save_all=True, append_images=[Image.new("L", (4, 4), 60)])
    assert corner(out.getvalue(), channels=1) == [30]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize(("orientation", "wanted"), [
    # the corner that is white after turning: (row, column) of a 8x16 image whose top left is white
    (1, (0, 0)), (2, (0, -1)), (3, (-1, -1)), (4, (-1, 0)), (5, (0, 0)), (6, (0, -1)), (7, (-1, -1)), (8, (-1, 0)),
])
def test_exif_orientation_is_applied_once(form: str, orientation: int, wanted: tuple[int, int]) -> None:
    image = np.zeros((8, 16), np.uint8)
    image[:4, :4] = 255
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    content = encode(image, form=form, exif=exif)
    got = pixels(content, 1, 0)[0]
    assert got.shape == ((8, 16) if orientation < 5 else (16, 8))
    corners = {(row, column): int(got[row, column]) for row in (0, -1) for column in (0, -1)}
    assert corners[wanted] > 200 and sum(value > 200 for value in corners.values()) == 1
    told = header(content)
    assert (told.height, told.width) == got.shape


@pytest.mark.filterwarnings("ignore:.*EXIF")
def test_damaged_exif_in_a_sound_image_is_ignored() -> None:
    for exif in (b"Exif\0\0no such thing", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"):
        content = encode(grey(7, 4, 8), form="JPEG", quality=100, exif=exif)
        assert header(content) == Header(4, 8, False) and (pixels(content, 1, 0) == np.full((1, 4, 8), 7)).all()


@pytest.mark.parametrize(("content", "coloured"), [
    (encode(7, "L"), False), (encode((7, 9), "LA"), False), (encode(1, "1"), False), (encode(np.zeros((4, 4), np.uint16)), False),
    (encode((7, 7, 7), "RGB"), True), (encode((7, 7, 7, 7), "RGBA"), True), (encode(7, "P"), True),
    (encode((0, 0, 0, 0), "CMYK", "JPEG"), True),
])
def test_a_header_tells_size_and_colour(content: bytes, coloured: bool) -> None:
    assert header(content) == header(content, whole=True) == Header(4, 4, coloured)


def test_a_header_decodes_nothing_and_a_whole_file_is_wanted_for_pixels(tmp_path: Path) -> None:
    content = encode(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    assert header(tmp_path / "cut.png") == Header(64, 64, True)
    for read in (lambda: header(tmp_path / "cut.png", whole=True), lambda: pixels(tmp_path / "cut.png", 3, 0)):
        with pytest.raises(OSError, match="truncated"):
            read()


@pytest.mark.parametrize("content", [b"", b"no image", encode(np.zeros((4, 4), np.float32), form="TIFF")])
def test_what_is_no_image_or_has_no_range_is_refused(content: bytes) -> None:
    with pytest.raises((OSError, ValueError)):
        header(content)
    with pytest.raises((OSError, ValueError)):
        pixels(content, 1, 0)


def test_the_middle_square_is_kept() -> None:
    image = np.arange(4 * 8, dtype=np.uint8).reshape(4, 8)
    np.testing.assert_array_equal(pixels(image[None], 1, 4)[0], image[:, 2:6])
    np.testing.assert_array_equal(pixels(image.T.copy()[None], 1, 4)[0], image[:, 2:6].T)
    # of an odd surplus, the left and the top lose less
    np.testing.assert_array_equal(pixels(image[None, :, :7].copy(), 1, 4)[0], image[:, 1:5])


@given(st.integers(0, 2**32), st.sampled_from([(16, 32), (32, 16), (24, 24), (8, 12)]))
def test_scaling_equals_scaling_the_shorter_side_and_cropping(seed: int, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    height, width = shape
    scale = min(shape) / 8
    scaled = np.asarray(Image.fromarray(image).resize((round(width / scale), round(height / scale)), Image.Resampling.BILINEAR))
    top, left = (scaled.shape[0] - 8) // 2, (scaled.shape[1] - 8) // 2
    # Pillow rounds between its two passes
    np.testing.assert_allclose(pixels(image[None], 1, 8)[0].astype(int), scaled[top:top + 8, left:left + 8].astype(int), atol=1)


def test_scaling_is_antialiased() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    assert np.abs(pixels(stripes[None], 1, 8)[0].astype(int) - 127).max() <= 5  # taking every eighth pixel would give 0 or 255
    np.testing.assert_array_equal(pixels(grey(9, 3, 3)[None], 1, 12), np.full((1, 12, 12), 9))
