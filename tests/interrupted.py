"""Runs that are interrupted after a round."""


def at(round, error=KeyboardInterrupt):
    """An `on_round` that raises after this round."""

    def on_round(row, model):
        if row.round == round:
            raise error

    return on_round
