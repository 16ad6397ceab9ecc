"""Jobs of a pool, done in this process: starting Python and torch would take seconds each."""

import pickle
from concurrent.futures import Executor, Future

from salf.runs import pool


class Here(Executor):
    """In the place of the pool's processes. What would go to them and back is pickled as well."""

    def __init__(self, workers, context, start, arguments):
        assert start is pool._start_worker
        pool._messages, pool._stop = arguments

    def submit(self, do, /, *arguments):
        future = Future()
        do, arguments = sent((do, arguments))
        try:
            future.set_result(sent(do(*arguments)))
        except Exception as error:
            future.set_exception(sent(error))
        return future


def sent(something):
    """As it is after it went to another process."""
    return pickle.loads(pickle.dumps(something))
