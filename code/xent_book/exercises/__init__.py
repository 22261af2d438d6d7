"""Checks for the exercises of the book: right, or the mistake that your answer looks like.

>>> import numpy as np
>>> from xent_book import exercises
>>> def my_loss(logits, targets):
...     right, wrong = np.logaddexp(0, -logits), np.logaddexp(0, logits)
...     return targets * right + (1 - targets) * wrong
>>> exercises.check("bce-from-logits", my_loss)
right: bce-from-logits agrees with the reference on all 6 inputs.

`check` never raises for a wrong answer: it returns a `Result`, which is true if the answer is right.

Writing an exercise
-------------------
The exercises of a chapter stand in a module of this package (``binary.py``, ``multiclass.py``, ...), in a
tuple called ``EXERCISES``; that is all the registration there is. An `Exercise` needs

- a name; the module says of which chapter;
- ``reference``, the right function; for an exercise that asks for a number or an array, a function without
  arguments that computes it;
- ``inputs``, a function that returns the argument tuples to try, the same ones at every call (seed what
  is random); leave it out where a value is asked for;
- the mistakes: a sentence to say, then the function that gets it wrong that way. If the same mistake can
  come out as different numbers (nan in one writing, inf in another), give all of them;
- ``rtol`` or ``atol`` where the default is too strict or too wide, and a comment that says why.

An answer is compared with the reference first, then with each mistake. So the inputs have to tell all of
them apart: ``tests/xent_book/test_exercises.py`` checks this for each exercise it finds here.
Exercises use NumPy and xent's NumPy modules, and import no framework.
"""

from xent_book.exercises._check import Exercise, Result, check, get, names

__all__ = ["Exercise", "Result", "check", "get", "names"]
