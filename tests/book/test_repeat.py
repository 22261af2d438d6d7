"""The check that the book repeats: what hangs on a run's surroundings is found, and named."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

import notebooks
import repeat

if TYPE_CHECKING:
    from .conftest import TinyBook


def test_what_hangs_on_the_surroundings_is_found(tiny_book: TinyBook) -> None:
    cells = {
        "02_hash": "# code\nprint({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'})",
        "03_zone": "# code\nimport datetime\nprint(datetime.datetime.fromtimestamp(10**9))",
        "04_picture": "# code\nimport os\nimport matplotlib.pyplot as plt\n"
        "plt.plot([int(os.environ['OMP_NUM_THREADS']), 2.0])\nplt.show()",
        "05_timing": "# code\nimport time\nprint(time.time())",
    }
    paths = {name: tiny_book.write_chapter(name, "# A title", cell) for name, cell in cells.items()}
    tagged = json.loads(paths["05_timing"].read_text())
    tagged["cells"][1]["metadata"]["tags"] = ["nbval-ignore-output"]
    paths["05_timing"].write_text(json.dumps(tagged))
    status, said = tiny_book.run("tools/notebooks.py")
    assert status == 0, said
    status, said = tiny_book.run("tools/repeat.py", "chapters/01_good.ipynb", *map(str, paths.values()))
    assert status == 1, said
    assert "02_hash.ipynb, cell 2 ('# code'):\n" in said and "\n  -{'" in said and "\n  +{'" in said
    assert "03_zone.ipynb, cell 2 ('# code'):\n" in said and "\n  +2001-09-09 15:46:40" in said
    assert "04_picture.ipynb, cell 2 ('# code'):\n  the picture " in said
    assert "01_good.ipynb" not in said and "05_timing.ipynb" not in said
    assert "5 chapters, 3 times: NOT the same" in said

    status, said = tiny_book.run("tools/repeat.py", "chapters/01_good.ipynb")
    assert status == 0, said
    assert said.endswith("1 chapter, 3 times: the same, byte for byte\n")


# ------------------------------------------------------------------------------------------- its parts


def chapter(*cells: dict[str, Any]) -> str:
    return notebooks.normal_form({"cells": list(cells), "metadata": {}})


def code(text: str = "", picture: bytes = b"", **metadata: Any) -> dict[str, Any]:
    outputs: list[dict[str, Any]] = []
    if text:
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if picture:
        data = {"image/png": base64.b64encode(picture).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return {"cell_type": "code", "metadata": metadata, "outputs": outputs, "source": "work()"}


def picture(*shades: int) -> bytes:
    file = io.BytesIO()
    image = Image.new("RGBA", (len(shades), 1), "white")
    for at, shade in enumerate(shades):
        image.putpixel((at, 0), (shade, shade, shade, 255))
    image.save(file, "PNG")
    return file.getvalue()


def test_the_first_cell_that_differs_is_shown() -> None:
    stored = chapter(code("same\n"), code("loss 0.12\nend\n"), code("more 1\n"))
    again = chapter(code("same\n"), code("loss 0.13\nend\n"), code("more 2\n"))
    assert repeat.differences(stored, stored, "x") == []
    lines = repeat.differences(stored, again, "x")
    assert lines[0] == "x, cell 2 ('work()'):"
    assert "  -loss 0.12" in lines and "  +loss 0.13" in lines and "more" not in "".join(lines)


def test_a_picture_is_compared_and_a_timing_is_not() -> None:
    stored, again = chapter(code(picture=picture(0, 255))), chapter(code(picture=picture(0, 251)))
    (_, line) = repeat.differences(stored, again, "x")
    assert line == "  the picture differs in 1 pixels, by up to 4 of 255"
    assert repeat.differences(stored, again, "x", with_pictures=False) == []
    (_, line) = repeat.differences(stored, chapter(code(picture=picture(0))), "x")
    assert "1) pixels large, not (2, 1)" in line
    timing = {"tags": ["nbval-ignore-output"]}
    assert repeat.differences(chapter(code("1 s", **timing)), chapter(code("2 s", **timing)), "x") == []


def test_sites_are_compared_file_by_file(tmp_path: Path) -> None:
    for name, text in {"a": "one two", "b": "one two"}.items():
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "page.html").write_text(text)
        (tmp_path / name / ".buildinfo").write_text(name)
    first, second = tmp_path / "a", tmp_path / "b"
    assert repeat.site_differences(first, second) == []
    (second / "deep" / "page.html").write_text("one six")
    (first / "more.css").touch()
    lines = repeat.site_differences(first, second)
    assert lines[0].startswith("deep/page.html, byte 4:") and "'one six'" in lines[0]
    assert lines[1] == "more.css: is only in one of the two sites"
    assert len(lines) == 2


def test_the_surroundings_differ_in_everything(tmp_path: Path) -> None:
    for name in ("PYTHONHASHSEED", "TZ", "HOME", "MPLCONFIGDIR"):
        values = {s.environment(tmp_path / s.folder, tmp_path / s.folder)[name] for s in repeat.ALL}
        assert len(values) == len(repeat.ALL) >= 3
    assert {s.threads for s in repeat.ALL} == {1, 2, 4}
    assert len({s.folder for s in repeat.ALL}) == len(repeat.ALL)
