"""Before any test: one thread a process, no window, no call to the internet, and files in memory where there is room."""

import os
import shutil
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
                   "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"})

# Whole runs make sure that the disk has what they write, hundreds of times in these tests, which then wait for a tenth of their time
IN_MEMORY, ROOM = Path("/dev/shm"), 8 << 30
if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM and not os.statvfs(IN_MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

from hypothesis import settings  # noqa: E402 - after the environment

from tests.thorough import THOROUGH  # noqa: E402

# The same cases every time, so that a change is what fails a test; FEDHEARTH_THOROUGH=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("thorough", deadline=None)
settings.load_profile("thorough" if THOROUGH else "same")
