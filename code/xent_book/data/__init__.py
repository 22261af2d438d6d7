"""What the chapters read: lengths of public answers, and where the records of the experiments lie."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["answer_lengths", "root"]


def answer_lengths() -> tuple[dict[str, NDArray[np.int64]], list[str]]:
    """Read the lengths of answers in three public data sets, in words between blanks, each with one more for its end.

    Returns
    -------
    tables : dict of ndarray
        A row for each prompt and an answer in each column, 0 where there is none: "e2e", (3331, 35), people's
        descriptions of a restaurant; "asset", (2359, 10), one sentence simplified by ten people; "alpaca_eval",
        (805, 227), one instruction answered by 227 models.
    models : list of str
        The models, a name for each column of "alpaca_eval".

    Notes
    -----
    E2E NLG by J. Novikova, O. Dušek and V. Rieser (2017), as cleaned by O. Dušek, D. M. Howcroft and V. Rieser (2019),
    CC BY-SA 4.0, the development and test parts. ASSET by F. Alva-Manchego and others (2020), CC BY-NC 4.0, both parts.
    The outputs published with AlpacaEval, X. Li and others (2023), CC BY-NC 4.0. Only counts are here, no texts.

    Examples
    --------
    >>> from xent_book.data import answer_lengths
    >>> tables, models = answer_lengths()
    >>> tables["asset"][0]
    array([14, 13, 12, 12, 21, 28, 14, 12, 19, 28])
    """
    with as_file(files("xent_book.data") / "answer_lengths.npz") as path, np.load(path) as stored:
        tables = {name: stored[name].astype(np.int64) for name in ("e2e", "asset", "alpaca_eval")}
        return tables, stored["models"].tolist()


def root() -> Path:
    """Return the folder that holds the folder `experiments`: the repository, or in the site's wheel this one."""
    here = Path(__file__).parent
    return here if (here / "experiments").exists() else here.parents[2]
