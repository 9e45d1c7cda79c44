import gc

import pytest


@pytest.fixture
def collected():
    """Free what earlier tests have left, before a loader forks its workers.

    A failed world leaves its store in the cycles of a traceback; a worker that inherits and frees it would wait for a
    thread it does not have, and die.
    """
    gc.collect()
