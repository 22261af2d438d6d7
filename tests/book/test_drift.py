"""The report on the newest releases: drift is a finding, and only a program that cannot work is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import drift
from drift import Difference, Failure, Outcome, ProgramError

pytestmark = pytest.mark.slow  # runs pytest in small repositories

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable


def test_packages_are_compared_by_their_normal_names() -> None:
    locked = ["numpy==2.4.6", "Jinja2==3.1.6", "sphinx_design==0.8.0", "gone==1.0", "-e ."]
    newest = ["numpy==2.5.0", "jinja2==3.1.6", "sphinx-design==0.9.0", "new.one==0.1"]
    assert drift.differences(locked, newest) == [
        Difference("gone", "1.0", ""),
        Difference("new.one", "", "0.1"),
        Difference("numpy", "2.4.6", "2.5.0"),
        Difference("sphinx_design", "0.8.0", "0.9.0"),
    ]
    assert drift.differences(locked[:3], locked[:3]) == []


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.xent.test_losses" name="test_good" />
<testcase classname="tests.xent.test_losses" name="test_left_out"><skipped message="no browser" /></testcase>
<testcase classname="chapters.07_frameworks.ipynb" name="Cell 12">
<failure message="#x1B[91mNotebook cell">#x1B[91mNotebook cell execution failed#x1B[0m
#x1B[94mCell 12: Cell outputs differ

Input:
#x1B[0mprint(loss)

#x1B[94m mismatch 'stdout'#x1B[91m

  'same\\nloss 0.31\\n' == 'same\\nloss 0.32\\n'

    same
  - loss 0.32
  ?         ^
  + loss 0.31
  ?         ^
#x1B[0m</failure></testcase>
<testcase classname="chapters.07_frameworks.ipynb" name="Cell 13">
<failure message="#x1B[91mNotebook cell">#x1B[91mNotebook cell execution failed#x1B[0m
#x1B[94mCell 13: Cell execution caused an exception

#x1B[31mTypeError#x1B[39m: unexpected argument
</failure></testcase>
<testcase classname="" name="tests.xent.test_torch">
<error message="collection failure">E   ImportError: gone</error></testcase>
</testsuite></testsuites>"""


def test_the_report_of_pytest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(JUNIT)
    assert drift.read_junit(path) == (
        1,
        [
            Failure("chapters.07_frameworks.ipynb::Cell 12", "stored: loss 0.31; now: loss 0.32"),
            Failure("chapters.07_frameworks.ipynb::Cell 13", "TypeError: unexpected argument"),
            Failure("tests.xent.test_torch", "ImportError: gone"),
        ],
    )


@pytest.mark.parametrize("text", [None, "", "<testsuites>", "<testsuites></testsuites>"])
def test_a_run_without_a_report_is_no_drift(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "report.xml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProgramError):
        drift.read_junit(path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a test that passes, one that fails, and one that a new release has broken."""
    for folder in ("tests", "code", "chapters", "tools"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests" / "test_good.py").write_text("def test_good():\n    pass\n")
    (tmp_path / "tests" / "test_bad.py").write_text("def test_bad():\n    assert 0.31 == 0.32\n")
    (tmp_path / "tests" / "test_gone.py").write_text("import a_package_that_has_gone\n")
    return tmp_path


def test_the_tests_run_on_and_every_failure_is_told(repository: Path) -> None:
    passed, failures = drift.run_tests(PYTHON, repository, {}, 1)
    assert passed == 1
    assert {failure.name.rpartition("test_")[2]: failure.reason for failure in failures} == {
        "bad": "assert 0.31 == 0.32",
        "gone": "ModuleNotFoundError: No module named 'a_package_that_has_gone'",
    }


def test_some_tests_can_be_chosen(repository: Path) -> None:
    assert drift.run_tests(PYTHON, repository, {}, 1, ["tests/test_good.py"]) == (1, [])


def test_tests_that_cannot_run_are_no_drift(repository: Path) -> None:
    (repository / "tests" / "conftest.py").write_text("raise SystemError('broken')\n")
    with pytest.raises(ProgramError, match="status"):
        drift.run_tests(PYTHON, repository, {}, 1)


def test_a_build_that_fails_says_why(repository: Path) -> None:
    script = repository / "tools" / "book.py"
    script.write_text(f"print('{repository}/chapters/01.ipynb: gone'); raise SystemExit(1)\n")
    assert drift.build(PYTHON, repository, {}, 1) == "chapters/01.ipynb: gone"
    script.write_text("print('built')\n")
    assert drift.build(PYTHON, repository, {}, 1) == ""


def test_a_package_that_cannot_be_installed_is_no_drift(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="could not install"):
        drift.install(tmp_path / "venv", [], ["--no-index", "--isolated"])


def test_the_report_says_what_to_do() -> None:
    quiet = drift.report(Outcome([], passed=10))
    assert "**No drift**: the book builds and 10 tests and cells pass." in quiet
    assert "0 differ" in quiet and "|" not in quiet and "make lock" not in quiet

    assert "the book was not built and 10 tests" in drift.report(Outcome([], passed=10, built=False))

    # A newer release under which everything holds is none either.
    newer = drift.report(Outcome([Difference("numpy", "2.4.6", "2.5.0")], passed=10))
    assert "**No drift**" in newer and "| numpy | 2.4.6 | 2.5.0 |" in newer

    failed = [Failure("test_a[x|y]", "`@someone` said 1 | 2")]
    loud = drift.report(Outcome([Difference("gone", "1.0", "")], "WARNING: ```", 9, failed))
    assert "**Drift**: the book does not build; 1 of 10 tests and cells fail that pass with the lock." in loud
    assert "| gone | 1.0 | not there |" in loud and "WARNING: '''" in loud and "make lock" in loud
    # What a test says is set as code: it addresses nobody and breaks no table.
    assert "| `test_a[x\\|y]` | `'@someone' said 1 \\| 2` |" in loud


def test_a_long_report_is_cut() -> None:
    text = drift.report(
        Outcome([], passed=1, failures=[Failure(f"test_{i}", "x" * 160) for i in range(5000)])
    )
    assert len(text) < 60_000, "an issue holds 65,536 characters"
    assert f"and {5000 - drift.SHOWN} more" in text


@pytest.mark.parametrize(("failures", "state"), [([], "none"), ([Failure("test_a", "1 != 2")], "drift")])
def test_drift_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: list[Failure], state: str
) -> None:
    monkeypatch.setattr(drift, "run", lambda *_: Outcome([], passed=3, failures=failures))
    report, told = tmp_path / "drift.md", tmp_path / "drift.txt"
    monkeypatch.setattr(sys, "argv", ["drift.py", "--report", str(report), "--state", str(told)])
    assert drift.main() == 0
    assert told.read_text() == f"{state}\n"
    assert report.read_text() == drift.report(Outcome([], passed=3, failures=failures))


def test_a_broken_program_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Outcome:
        raise ProgramError("no registry")

    monkeypatch.setattr(drift, "run", broken)
    monkeypatch.setattr(sys, "argv", ["drift.py", "--report", str(tmp_path / "drift.md")])
    assert drift.main() == 2
    assert not (tmp_path / "drift.md").exists()


def test_the_browser_is_left_out_and_nothing_else() -> None:
    left_out = {path.stem for path in drift.browser_tests(ROOT)}
    assert {"test_site", "test_accessibility", "test_planted"} <= left_out
    assert not left_out & {"test_repository", "test_prose_numbers", "test_workflows", "test_notebooks"}


def test_a_bare_python_can_run_it() -> None:
    """The workflow has no environment but the one that the program makes."""
    command = [PYTHON, "-S", "-c", "import sys; sys.path.insert(0, 'tools'); import drift"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0
