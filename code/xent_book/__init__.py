"""What the book needs and a library does not: exercises, framework probes, and the look of the figures.

Nothing is imported here: `xent_book.exercises` needs NumPy alone, `xent_book.plots` matplotlib, and
`xent_book.behaviours` loads a framework only when a probe of it runs.
"""
