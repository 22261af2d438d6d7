"""The appendices: what they say comes from the repository."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser

import errata

ROOT = Path(__file__).resolve().parents[2]
SOURCES, ROWS = errata.read(ROOT)
TESTS = errata.read_tests(ROOT)

# The number of each source's statements; each has a row, whether it holds or not.
STATEMENTS = {0: 18, 1: 19, 2: 7, 3: 14, 4: 9}


def test_rows_and_tests_fit_together() -> None:
    assert list(errata.problems(ROOT)) == []
    ids = {row.id for row in ROWS}
    expected = {f"{source}.{n}" for source, last in STATEMENTS.items() for n in range(1, last + 1)}
    assert expected <= ids and len(ids) == len(ROWS)
    assert all(re.fullmatch(r"\d\.[a-z]", i) for i in ids - expected)
    assert len({(test.path, test.name) for test in TESTS}) == len(TESTS), "a later test hides one of its name"


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        (["erratum_3_1_one", "slip_of_3_a"], []),
        # 3.11 is not checked by the test of 3.1, whose name begins alike.
        (["erratum_3_1_one"], ["row 3.11 has no test", "row 3.11 names test_slip_of_3_a, which is no test"]),
        (["erratum_3_1_one", "slip_of_3_a", "erratum_3_2_two"], ["test_erratum_3_2_two checks no row"]),
        (["erratum_3_1_one", "slip_of_3_a", "slip_of_4_b"], ["test_slip_of_4_b checks no row"]),
        (
            ["erratum_3_1_one", "slip_of_3_a", "else"],
            ["row 3.1: the section 'Heads'", "row 3.11: the section"],
        ),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, tests: list[str], told: list[str]) -> None:
    elsewhere = "else" in tests  # the correction stands behind the section that the card names
    tests = [name for name in tests if name != "else"]
    (tmp_path / "chapters").mkdir()
    (tmp_path / "tests").mkdir()
    row = {"verdict": "wrong", "place": "there", "stands": "a", "truth": "b", "section": ["01_coin", "Heads"]}
    row["says"] = "It is b."
    text = "# A coin\n\n## Heads\n\n### One\n\nIt\nis b.\n\n## Tails\n"
    if elsewhere:
        text = text.replace("It\nis b.", "") + "It is b."
    (tmp_path / "chapters/01_coin.md").write_text(text)
    rows = [{"id": "3.1", **row}, {"id": "3.11", **row, "also": ["test_slip_of_3_a"]}]
    source = {"id": 3, "title": "A post", "about": "It."}
    (tmp_path / errata.FILE).write_text(yaml.safe_dump({"sources": [source], "rows": rows}))
    (tmp_path / "tests/test_coin.py").write_text("".join(f"def test_{name}():\n    pass\n" for name in tests))
    problems = list(errata.problems(tmp_path))
    assert len(problems) == len(told)
    assert all(part in problem for part, problem in zip(told, problems, strict=True))


def test_the_errata_are_filtered_without_a_script(browser: Browser, built_site: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto((built_site / "chapters/errata.html").as_uri())
    cards = page.locator(".erratum")
    assert cards.count() == len(ROWS)
    for verdict in [*errata.VERDICTS, "all"]:
        page.locator(f'.errata-filter input[value="{verdict}"]').check()
        shown = cards.evaluate_all("cards => cards.map(card => getComputedStyle(card).display != 'none')")
        assert shown == [verdict in ("all", row.verdict) for row in ROWS], verdict
    context.close()


def test_the_errata_and_the_chapters_lead_to_each_other(built_site: Path) -> None:
    page = (built_site / "chapters/errata.html").read_text(encoding="utf-8")
    assert [row.id for row in ROWS if page.count(f'id="{row.anchor}"') != 1] == []
    assert [test.name for test in TESTS if test.name not in page] == []
    for chapter, target in (
        ("01_binary", "errata.html#erratum-3-3"),
        ("10_averaged_loss", "errata.html#erratum-0-10"),
        ("10_averaged_loss", "api.html#xent.torch.accumulate"),
    ):
        assert f'href="{target}"' in (built_site / f"chapters/{chapter}.html").read_text(encoding="utf-8")


def test_the_reference_holds_every_public_name(built_site: Path) -> None:
    page = (built_site / "chapters/api.html").read_text(encoding="utf-8")
    missing = []
    for path in sorted((ROOT / "code/xent").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "code").with_suffix("").parts).removesuffix(".__init__")
        if "._" in name:
            continue
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            places = {f"{name}.{public}", f"xent.{public}"}
            if not inspect.ismodule(getattr(module, public)) and not any(
                f'id="{place}"' in page for place in places
            ):
                missing.append(f"{name}.{public}")
    assert missing == []
    assert page.count("katex-display") >= 20 and "system-message" not in page


def test_the_index_finds_what_a_reader_would_look_up(built_site: Path) -> None:
    page = (built_site / "genindex.html").read_text(encoding="utf-8")
    words = [
        "gradient accumulation",
        "label smoothing",
        "logit",
        "Kullback-Leibler",
        "nan",
        "accumulate()",
        "0.693",
    ]
    assert [word for word in words if word not in page] == []


def test_the_tables_of_the_benchmark_are_what_was_measured() -> None:
    tables = runpy.run_path(str(ROOT / "experiments/bench/tables.py"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in tables["RECORDS"]]
    assert tables["TABLES"].read_text(encoding="utf-8") == tables["text"](*records), (
        "run experiments/bench/tables.py"
    )
    result = records[0]
    first = result["cases"][0]["seconds"]
    assert f"{first['xent']['fastest'] / first['torch']['fastest']:.2f}" in tables["times"](
        result["cases"][:1]
    )
