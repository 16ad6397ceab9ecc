"""Progress in a notebook: one text below the cell, which goes away."""

import sys
from types import SimpleNamespace

from salf.common import bars


def test_a_notebook_shows_one_text_that_changes_and_goes_away(monkeypatch):
    shown = []

    class Cell:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return Cell()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(bars.console, "is_jupyter", True, raising=False)
    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    monkeypatch.setattr(bars, "BETWEEN", 0.0)
    with bars.Bar("rounds", counted=True) as bar:
        bar.update(1, 4)
        bar.update(3, 4)
    assert ["1/4" in shown[0], "3/4" in shown[1], *shown[2:]] == [True, True, ""]
    assert all("\n" not in each for each in shown)
