"""Make the chapters' pictures small: at most 256 colours, an index for each pixel, no difference to be seen.

A plot of lines and letters has one or two thousand colours, nearly all of them shades along the edges. Those
that fill areas are kept exactly. The rest become the nearest of a palette that is spread so that the worst
error is small; where that would still show, as in a smooth surface, the picture keeps all its colours. The
result depends on the pixels alone, and a picture that has been made small comes back as it is.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

COLOURS = 256
# A colour of one pixel in 4,000 or more is part of the drawing: it stays as it is.
AREA = 1 / 4000
# How far a channel may move, of 255. Only shades of edges do, where at twice the size nothing is seen of it.
WORST = 10

Pixels = npt.NDArray[np.int32]


def palette(colours: Pixels, counts: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Choose which of the colours to keep: the frequent ones, then always the one that is farthest off."""
    order = np.argsort(-counts, kind="stable")
    kept = [int(i) for i in order if counts[i] >= AREA * counts.sum()][:COLOURS]
    kept = kept or [int(order[0])]
    distance = np.full(len(colours), np.iinfo(np.int32).max)
    for i in kept:
        distance = np.minimum(distance, ((colours - colours[i]) ** 2).sum(axis=1))
    while len(kept) < COLOURS and distance.max() > 0:
        kept.append(int(distance.argmax()))
        distance = np.minimum(distance, ((colours - colours[kept[-1]]) ** 2).sum(axis=1))
    return np.array(kept)


def reduce(pixels: Pixels) -> tuple[npt.NDArray[np.uint8], Pixels] | None:
    """Index the pixels of an RGBA picture into a palette; None if the palette's error would show."""
    height, width, _ = pixels.shape
    packed = pixels @ np.array([1 << 24, 1 << 16, 1 << 8, 1], dtype=np.int64)
    values, inverse, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([(values >> shift) & 255 for shift in (24, 16, 8, 0)], axis=1).astype(np.int32)
    kept = colours[palette(colours, counts)]
    nearest = ((colours[:, None, :] - kept[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    if np.abs(colours - kept[nearest]).max() > WORST:
        return None
    return nearest[inverse].reshape(height, width).astype(np.uint8), kept


def small(picture: bytes) -> bytes:
    """Return a PNG file as the book stores it."""
    image = Image.open(io.BytesIO(picture))
    if image.mode == "P":
        return picture
    options: dict[str, Any] = {"optimize": True}
    if "dpi" in image.info:  # the size at which it prints
        options["dpi"] = image.info["dpi"]
    pixels = np.asarray(image.convert("RGBA"), dtype=np.int32)
    found = reduce(pixels)
    if found is None:
        # All colours, but no channel for an opacity that is everywhere full.
        result = image.convert("RGB" if (pixels[..., 3] == 255).all() else "RGBA")
    else:
        index, kept = found
        result = Image.fromarray(index, mode="P")
        opaque = bool((kept[:, 3] == 255).all())
        result.putpalette(
            kept[:, : 3 if opaque else 4].astype(np.uint8).tobytes(), "RGB" if opaque else "RGBA"
        )
    file = io.BytesIO()
    result.save(file, "PNG", **options)
    return file.getvalue()


def small_pictures(data: dict[str, Any]) -> dict[str, Any]:
    """Return the representations of an output with its PNG picture, if there is one, made small."""
    if "image/png" not in data:
        return data
    encoded = data["image/png"]
    picture = base64.b64decode("".join(encoded) if isinstance(encoded, list) else encoded)
    return {**data, "image/png": base64.b64encode(small(picture)).decode("ascii")}
