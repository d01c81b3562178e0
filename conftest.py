"""Settings of the tests that numpy reads when it is imported, which tests/conftest.py does."""

import os

# Workers, ranks and kernels of notebooks run at the same time. The threads of a matrix product wait for each other
# without sleeping, so on busy cores they take several times as long as one thread. What tests start inherits it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
