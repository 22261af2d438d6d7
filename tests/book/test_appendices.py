"""The appendices and the front page: what they say comes from the repository, and their links lead on."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, Page

import errata
import xent
import xent_api
import xent_errata
import xent_front
from xent.sequences import eos_optimum

ROOT = Path(__file__).resolve().parents[2]
SOURCES, ROWS = errata.read(ROOT)
TESTS = errata.read_tests(ROOT)
INDEX = (ROOT / "index.md").read_text(encoding="utf-8")

# The ids of the sources' statements, by source; each has a row, whether it holds or not.
STATEMENTS = {0: 18, 1: 19, 2: 7, 3: 14, 4: 9}


# ------------------------------------------------------------------------------------- the errata


def test_rows_tests_and_sections_fit_together() -> None:
    assert errata.problems(ROOT) == []


def test_every_statement_of_every_source_has_a_row() -> None:
    ids = {row.id for row in ROWS}
    expected = {f"{source}.{n}" for source, last in STATEMENTS.items() for n in range(1, last + 1)}
    assert expected <= ids
    assert {i for i in ids - expected if not re.fullmatch(r"\d\.[a-z]", i)} == set()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The errata of a book with two rows, a chapter and a test file."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "tests").mkdir()
    source = {"id": 3, "title": "A post", "about": "It."}
    row = {"verdict": "wrong", "place": "there", "stands": "a", "truth": "b", "section": ["01_coin", "Heads"]}
    rows = [{"id": "3.1", **row}, {"id": "3.11", **row, "also": ["test_slip_of_3_a_letter"]}]
    (tmp_path / errata.FILE).write_text(yaml.safe_dump({"sources": [source], "rows": rows}))
    cells = '{"cells": [{"cell_type": "markdown", "source": ["# Coin\\n", "## Heads"]}]}'
    (tmp_path / "chapters/01_coin.ipynb").write_text(cells)
    write_tests(tmp_path, "test_erratum_3_1_one", "test_slip_of_3_a_letter")
    return tmp_path


def write_tests(root: Path, *names: str) -> None:
    (root / "tests/test_coin.py").write_text("".join(f"def {name}():\n    assert True\n" for name in names))


def test_an_errata_file_that_fits_has_no_problem(small: Path) -> None:
    assert errata.problems(small) == []


def test_a_row_without_a_test_is_told(small: Path) -> None:
    # 3.11 is not checked by the test of 3.1, whose name begins alike.
    write_tests(small, "test_erratum_3_1_one")
    told = "\n".join(errata.problems(small))
    assert "row 3.11 has no test; expected test_erratum_3_11_..." in told
    assert "row 3.11 names test_slip_of_3_a_letter, which is no test" in told
    assert "row 3.1 has no test" not in told


def test_a_test_without_a_row_is_told(small: Path) -> None:
    write_tests(
        small, "test_erratum_3_1_one", "test_slip_of_3_a_letter", "test_erratum_3_2_two", "test_slip_of_4_b"
    )
    told = errata.problems(small)
    assert [line.split(" ")[0] for line in told] == [
        "tests/test_coin.py::test_erratum_3_2_two",
        "tests/test_coin.py::test_slip_of_4_b",
    ]


def test_a_section_that_is_not_there_is_told(small: Path) -> None:
    chapter = small / "chapters/01_coin.ipynb"
    chapter.write_text(chapter.read_text().replace("## Heads", "## Tails"))
    assert len(errata.problems(small)) == 2
    assert "points to 'Heads' in 01_coin, which is not there" in errata.problems(small)[0]


def test_the_errata_tests_are_collected() -> None:
    """A test that pytest does not collect checks nothing, as one whose name a later one hides."""
    for path in {test.path for test in TESTS}:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert len(names) == len(set(names)), f"{path} defines a name twice"
        assert path.startswith("tests/")


# ------------------------------------------------------------------------------------- the reference


def test_the_reference_holds_every_public_name() -> None:
    text = xent_api.page_text(ROOT)
    listed = set(re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", text, flags=re.M))
    missing = []
    for path in sorted((ROOT / "code/xent").rglob("*.py")):
        parts = path.relative_to(ROOT / "code").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if any(part.startswith("_") for part in parts) or not xent_api.declared(path):
            continue
        module = importlib.import_module(".".join(parts))
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing):
                if not any(entry.startswith(f"{thing.__name__}.") for entry in listed):
                    missing.append(thing.__name__)
            elif not {f"{module.__name__}.{name}", f"xent.{name}"} & listed:
                missing.append(f"{module.__name__}.{name}")
    assert missing == []
    assert "xent.cross_entropy" in listed and "xent.losses.cross_entropy" not in listed


def test_a_new_public_name_appears_by_itself(tmp_path: Path) -> None:
    package = tmp_path / "code/xent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__all__ = ["one"]\n')
    (package / "new.py").write_text('__all__ = ["two"]\n')
    (package / "_hidden.py").write_text('__all__ = ["three"]\n')
    assert xent_api.public_modules(tmp_path) == {"xent": ["one"], "xent.new": ["two"]}


def test_uses_are_found_through_every_form_of_import() -> None:
    known: dict[str, str] = {}
    first = "import xent\nimport xent.torch\nfrom xent import information as info, softmax\n"
    used = xent_api.used_names(first, known)
    # A later cell knows the imports of the earlier ones.
    used |= xent_api.used_names("info.entropy(softmax(z)); xent.torch.accumulate(b); other.nll(z)", known)
    assert {"xent.information.entropy", "xent.softmax", "xent.torch.accumulate"} <= used
    assert not any(name.endswith("nll") for name in used)


def test_names_know_the_chapters_that_use_them() -> None:
    users = xent_api.chapters_that_use(ROOT)
    assert "10_averaged_loss" in users["xent.sequences.eos_optimum"]
    assert "11_denominators" in users["xent.torch.accumulate"]
    assert "01_binary" in users["xent.binary_cross_entropy"]
    for name, stems in users.items():
        for stem in stems:
            code = (ROOT / "chapters" / f"{stem}.ipynb").read_text(encoding="utf-8")
            assert name.rpartition(".")[2] in code, f"{stem} does not use {name}"


# ------------------------------------------------------------------------------------- the front page


def test_the_figure_of_the_front_page_is_what_xent_computes() -> None:
    svg = xent_front.picture()
    points = [tuple(map(float, p.split(","))) for p in re.search(r'points="([^"]+)"', svg)[1].split()]
    zero, ten = xent_front.place(1, 0)[1], xent_front.place(1, 10)[1]
    assert len(points) == 8
    for k, (x, y) in enumerate(points):
        learnt = 10 * (zero - y) / (zero - ten)
        # Independent of the package: B int_0^1 G(u)^B / u du with G(u) = 0.1 u / (1 - 0.9 u).
        u = [(i + 0.5) / 20_000 for i in range(20_000)]
        optimum = 2**k * sum((0.1 * v / (1 - 0.9 * v)) ** 2**k / v for v in u) / len(u)
        assert learnt == pytest.approx(1 / optimum, abs=0.03)
        assert x == pytest.approx(points[0][0] + k * (points[7][0] - points[0][0]) / 7, abs=0.2)
    assert "1 to 128" in svg and "With one sequence the model learns 3.9 tokens" in svg


def test_the_numbers_of_the_front_page_are_true() -> None:
    optimum = eos_optimum(0.1, 1)
    assert optimum == pytest.approx(0.1 * math.log(0.1) / (0.1 - 1), rel=1e-13, abs=0)
    printed = (0.1 - 1) / 0.1 * math.log(1 - 0.1)
    expected = {f"{optimum:.3f}", f"{printed:.3f}", f"{1 / optimum:.1f}", "0.1"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = readme[readme.index("**A finding.**") : readme.index("**A check.**")]
    for prose in (INDEX[: INDEX.index("## One check")], told):
        assert set(re.findall(r"(?<![\w.])\d\.\d+(?!\w|\.\d)", prose)) == expected
    sides = [eos_optimum(0.1, batch) for batch in (1, 2, 8, 128)]
    assert sides == sorted(sides, reverse=True) and min(sides) > 0.1


def test_the_check_on_the_front_page_is_a_test_of_the_row_that_it_tells_of() -> None:
    name = re.search(r":pyobject: (\w+)", INDEX)[1]
    row = next(row for row in ROWS if row.id == "0.10")
    assert name in {test.name for test in errata.tests_of(row, TESTS)}
    assert "0.948" in row.truth and "0.256" in row.truth


def test_the_lines_of_code_on_the_front_page_run() -> None:
    block = re.findall(r"```python\n(.*?)```", INDEX, flags=re.S)[-1]
    names = {"logits": [[2.0, 1.0, 0.0]], "targets": [0]}
    exec(block, names)
    assert names["xent"] is xent


# ------------------------------------------------------------------------------------- in the built site


def html(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_every_card_has_an_anchor_and_its_links_lead_to_a_section(built_site: Path) -> None:
    page = html(built_site, "chapters/errata.html")
    for row in ROWS:
        assert page.count(f'id="{row.anchor}"') == 1
        assert f'href="{row.target}"' in page
        file, _, anchor = row.target.partition("#")
        assert f'id="{anchor}"' in html(built_site, f"chapters/{file}"), row.target
    for test in TESTS:
        assert test.name in page


def test_the_chapters_link_to_the_errata_and_to_the_reference(built_site: Path) -> None:
    first = html(built_site, "chapters/01_binary.html")
    assert 'href="errata.html#erratum-3-3"' in first
    tenth = html(built_site, "chapters/10_averaged_loss.html")
    assert 'href="errata.html#erratum-0-10"' in tenth
    assert 'href="api.html#xent.torch.accumulate"' in tenth


def test_the_reference_links_to_the_chapters_and_renders_its_formulas(built_site: Path) -> None:
    page = html(built_site, "chapters/api.html")
    for name in xent_api.entries(ROOT):
        assert f'id="{name}"' in page, name
    users = xent_api.chapters_that_use(ROOT)
    for stem in {stem for stems in users.values() for stem in stems}:
        assert f'href="{stem}.html"' in page
    assert page.count("katex-display") >= 20
    assert "system-message" not in page and "math-error" not in page


def test_the_index_finds_what_a_reader_would_look_up(built_site: Path) -> None:
    page = html(built_site, "genindex.html")
    for word in [
        "gradient accumulation",
        "log_loss",
        "label smoothing",
        "negative log-likelihood",
        "logit",
        "KL divergence",
        "nan",
        "ignore_index",
        "properness",
        "accumulate()",
        "cross_entropy()",
    ]:
        assert word in page, f"the index has no entry for {word}"


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    # Without scripts: the filter is a matter of the style sheet.
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    yield context.new_page()
    context.close()


# Not `is_visible`: a section far from the view has no size until it comes near.
DISPLAYED = "cards => cards.map(card => getComputedStyle(card).display != 'none')"


def test_the_filter_works_without_a_script(page: Page, built_site: Path) -> None:
    page.goto((built_site / "chapters/errata.html").as_uri())
    cards = page.locator(".erratum")
    assert cards.count() == len(ROWS)
    for verdict, name in errata.VERDICTS.items():
        page.locator(f'.errata-filter input[value="{verdict}"]').check()
        shown = [i for i, there in enumerate(cards.evaluate_all(DISPLAYED)) if there]
        assert [ROWS[i].verdict for i in shown] == [verdict] * sum(row.verdict == verdict for row in ROWS), (
            name
        )
    page.locator('.errata-filter input[value="all"]').check()
    assert all(cards.evaluate_all(DISPLAYED))


def test_the_extension_knows_where_its_page_is() -> None:
    assert (ROOT / f"{xent_errata.PAGE}.md").exists() and (ROOT / f"{xent_api.PAGE}.md").exists()
