"""The small pictures: as many colours as the eye needs, the same bytes for the same pixels."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import execution
import notebooks
import pictures

ROOT = Path(__file__).resolve().parents[2]
WHITE, BLUE, CLEAR = (255, 255, 255, 255), (0, 114, 178, 255), (0, 0, 0, 0)


def png(pixels: np.ndarray[Any, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8), "RGBA").save(file, "PNG", **options)
    return file.getvalue()


def opened(picture: bytes) -> tuple[str, np.ndarray[Any, Any]]:
    image = Image.open(io.BytesIO(picture))
    return image.mode, np.asarray(image.convert("RGBA")).astype(int)


def drawing(shades: int, background: tuple[int, int, int, int] = WHITE) -> np.ndarray[Any, Any]:
    """A flat ground with a flat line, and single pixels in more shades than a palette holds."""
    pixels = np.full((200, 300, 4), background)
    pixels[50:60] = BLUE
    at = np.arange(shades)
    pixels[100 + at // 300, at % 300] = np.stack([at % 256, at % 251, at % 241, np.full(shades, 255)], axis=1)
    return pixels


def test_a_picture_of_few_colours_keeps_each_of_them() -> None:
    pixels = drawing(200)
    mode, small = opened(pictures.small(png(pixels)))
    assert mode == "P" and (small == pixels).all()


def test_many_shades_become_a_palette_that_keeps_what_fills_areas() -> None:
    pixels = drawing(600)
    picture = png(pixels)
    mode, small = opened(pictures.small(picture))
    error = np.abs(small - pixels)
    assert mode == "P" and 0 < error.max() <= pictures.WORST
    assert (error[:100] == 0).all() and (error[103:] == 0).all()


def test_a_picture_that_needs_its_colours_keeps_them() -> None:
    # A smooth surface: every pixel has another colour, and 256 would leave steps.
    x, y = np.meshgrid(np.arange(0, 256, 4), np.arange(0, 256, 4))
    pixels = np.stack([x, y, (x + y) % 256, np.full_like(x, 255)], axis=2)
    mode, small = opened(pictures.small(png(pixels)))
    assert mode == "RGB" and (small == pixels).all()


@pytest.mark.parametrize("shades", [100, 600])
def test_a_transparent_ground_stays_transparent(shades: int) -> None:
    pixels = drawing(shades, CLEAR)
    pixels[150:, :, 3] = 128
    mode, small = opened(pictures.small(png(pixels)))
    assert mode == "P" and (small[..., 3] == pixels[..., 3]).all()


@pytest.mark.parametrize("shades", [100, 600, 2_000])
def test_the_result_depends_on_the_pixels_alone_and_is_a_fixed_point(shades: int) -> None:
    pixels = drawing(min(shades, 600))
    if shades > 600:  # noise, which keeps its colours
        pixels = pixels[:40, :50]
        pixels[..., :3] = np.random.default_rng(1).integers(0, 256, (40, 50, 3))
    note = PngImagePlugin.PngInfo()
    note.add_text("Software", "version 1")
    small = pictures.small(png(pixels, dpi=(144, 144)))
    assert small == pictures.small(png(pixels, dpi=(144, 144), compress_level=1, pnginfo=note))
    assert small == pictures.small(small)
    assert b"Software" not in small and b"tEXt" not in small


@pytest.mark.slow
def test_notebooks_and_pages_get_the_same_small_pictures(tmp_path: Path) -> None:
    lines = [
        "import matplotlib.pyplot as plt",
        "from xent_book import plots",
        "plots.use_style()",
        "plt.plot([1, 3, 2])",
        "plt.show()",
    ]
    path = tmp_path / "chapter.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("\n".join(lines))]), path)
    run = execution.execute(path)
    assert run.error is None
    # The run goes into the pages' cache, its normal form into the repository.
    [shown] = [output["data"]["image/png"] for output in run.notebook.cells[0].outputs if "data" in output]
    [cell] = json.loads(notebooks.normal_form(run.notebook))["cells"]
    [stored] = [output["data"]["image/png"] for output in cell["outputs"] if "data" in output]
    assert shown == stored
    assert opened(base64.b64decode(shown))[0] == "P"
    # A picture that an editor stored large becomes small with the rest.
    large = base64.encodebytes(png(drawing(300))).decode()
    assert opened(base64.b64decode(notebooks.mime_bundle({"image/png": large})["image/png"]))[0] == "P"
