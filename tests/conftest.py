"""Before any test: one thread a process, no window, no call to the internet."""

import os

os.environ.update({"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
                   "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"})
