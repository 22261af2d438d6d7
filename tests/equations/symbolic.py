"""Whether a symbolic expression is zero, decided and not searched for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy


def vanishes(expression: Any, logits: Sequence[sympy.Symbol]) -> bool:
    """Whether an expression that is rational in the powers of the logits is zero: its numerator is."""
    powers = sympy.symbols(f"e:{len(logits)}", positive=True, cls=sympy.Dummy)
    rational = expression.subs({z: sympy.log(e) for z, e in zip(logits, powers, strict=True)})
    return bool(sympy.expand(sympy.numer(sympy.together(rational))) == 0)
