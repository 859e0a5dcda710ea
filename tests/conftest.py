"""What every test needs before Spark starts in its process."""

import os
from pathlib import Path

from hypothesis import settings

# Spark's Python workers run in this environment, whatever `python3` is on the path.
os.environ["PYSPARK_PYTHON"] = str(Path(__file__).resolve().parent.parent / "conf" / "python")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

# A busy machine must not fail a test, and a landing must not depend on the examples drawn.
settings.register_profile("ebbtide", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ebbtide")
