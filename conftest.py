"""Settings of all tests, those in docstrings included."""

import os
import sys
from collections.abc import Iterator

import pytest

# Workers, ranks and kernels of notebooks run at the same time. The threads of a matrix product wait for each other
# without sleeping, so on busy cores they take several times as long as one thread. What tests start inherits it. numpy
# reads it when it is imported, which tests/conftest.py does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    """Close the figures of a test. pyplot keeps them, and warns about more than 20."""
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")
