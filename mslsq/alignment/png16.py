"""PNG of 16 bits and several bands, of which Pillow keeps the upper 8 bits when reading and writes none.

Reading, Pillow still does the work: its unpackers ``RGB;16B`` and ``RGB;16L`` take one byte of two, the first and
the second. Writing is a header, the rows, and zlib (W3C, Portable Network Graphics, second edition, 2003).
"""

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BANDS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Bands by colour type: grey, RGB, palette, grey with alpha, RGB with alpha."""


class Header(NamedTuple):
    """The chunk IHDR."""

    width: int
    height: int
    depth: int
    colour_type: int
    compression: int
    filter: int
    interlaced: int


def png_header(file: Path) -> Header:
    """The header of a file that begins as a PNG does."""
    with open(file, "rb") as stream:
        return Header(*struct.unpack(">IIBBBBB", stream.read(29)[16:]))


def read_png16(file: Path) -> np.ndarray:
    """(height, width, bands) of a PNG of 16 bits with 2, 3 or 4 bands, uint16."""
    from PIL import Image

    header, packed = png_header(file), _data(file)
    size, interlaced = (header.width, header.height), header.interlaced
    bands = BANDS[header.colour_type]

    def decode(mode: str, layout: str) -> np.ndarray:
        return np.asarray(Image.frombytes(mode, size, packed, "zip", layout, interlaced))

    if bands == 2:  # four bytes a pixel, as they are
        upper, lower = np.moveaxis(decode("RGBA", "RGBA").reshape(header.height, header.width, 2, 2), -1, 0)
    else:
        mode = {3: "RGB", 4: "RGBA"}[bands]
        upper, lower = decode(mode, f"{mode};16B"), decode(mode, f"{mode};16L")
    return upper.astype(np.uint16) << 8 | lower


def write_png16(file: Path, array: np.ndarray) -> None:
    """(height, width, bands) of uint16 with 2, 3 or 4 bands."""
    height, width, bands = array.shape
    colour_type = {2: 4, 3: 2, 4: 6}[bands]
    rows = array.astype(">u2").reshape(height, -1).view(np.uint8)
    # Filter 2: the difference to the row above, which zlib packs better than the values.
    above = np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), rows - above], 1)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b"")]
    with open(file, "wb") as stream:
        stream.write(SIGNATURE)
        for name, content in chunks:
            checksum = zlib.crc32(name + content)
            stream.write(struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum))


def _data(file: Path) -> bytes:
    """The compressed pixels: the chunks IDAT one after the other."""
    content, position, parts = file.read_bytes(), len(SIGNATURE), []
    while position + 12 <= len(content):
        (length,), name = struct.unpack(">I", content[position : position + 4]), content[position + 4 : position + 8]
        end = position + 8 + length
        if end + 4 > len(content):
            break
        if zlib.crc32(content[position + 4 : end]) != struct.unpack(">I", content[end : end + 4])[0]:
            raise ValueError(f"damaged: the checksum of chunk {name.decode('latin1')} at byte {position} is wrong")
        if name == b"IEND":
            return b"".join(parts)
        if name == b"IDAT":
            parts.append(content[position + 8 : end])
        position = end + 4
    raise ValueError("damaged: the file ends before its last chunk")
