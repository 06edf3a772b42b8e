"""Whether the long cases run too: ``FEDHEARTH_THOROUGH=1 make test``, before a release."""

import os

THOROUGH = bool(os.environ.get("FEDHEARTH_THOROUGH"))
