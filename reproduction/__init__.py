"""The paper's tables, figures, lemmas and theorem, made again, with a verdict on each claim."""
