"""Before any test: one thread a process, no window, no call to the internet."""

import os

os.environ.update({"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
                   "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"})

from hypothesis import settings  # noqa: E402 - after the environment

from tests.thorough import THOROUGH  # noqa: E402

# The same cases every time, so that a change is what fails a test; FEDHEARTH_THOROUGH=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("thorough", deadline=None)
settings.load_profile("thorough" if THOROUGH else "same")
