"""Each symptom's check is true of its broken example and false of its mended one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from xent_book.frameworks import SYMPTOMS, Symptom, SymptomTable

# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda s: s.slug)
def test_a_check_tells_broken_from_mended(symptom: Symptom) -> None:
    assert symptom.verdicts == (True, False)


def test_the_list_is_complete_and_its_rows_can_be_linked() -> None:
    assert len(SYMPTOMS) >= 25
    slugs = [s.slug for s in SYMPTOMS]
    assert len(set(slugs)) == len(slugs)
    html = SymptomTable()._repr_html_()
    for s in SYMPTOMS:
        assert re.fullmatch(r"[a-z0-9-]+", s.slug)
        assert s.symptom and s.cause and s.fix
        assert "\n" not in s.check and len(s.check) <= 90, s.slug
        assert html.count(f'id="symptom-{s.slug}"') == 1
    assert html.count("<tbody>") == html.count("</tbody>") == len({s.group for s in SYMPTOMS})


def test_groups_stand_together() -> None:
    groups = [s.group for s in SYMPTOMS]
    assert groups == sorted(groups, key=groups.index)


def test_a_check_that_is_neither_true_nor_false_is_refused() -> None:
    vague = Symptom("vague", "group", "symptom", "cause", "1.5", "fix", "", "")
    with pytest.raises(TypeError, match="the check of 'vague' returned a float"):
        vague.run("")


def test_a_check_on_arrays_loads_no_framework() -> None:
    code = (
        "import sys; from xent_book.frameworks import SYMPTOMS; s = {s.slug: s for s in SYMPTOMS};"
        "print(s['bits-for-nats'].verdicts, s['zero-times-log-zero'].verdicts);"
        "print([m for m in ('torch', 'sklearn', 'keras', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("(True, False) (True, False)\n[]\n", "")
