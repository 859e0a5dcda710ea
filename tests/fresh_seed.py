"""A seed that no run of the tests has had before, the same in each of a run's workers.

It is part of tests' names, so a failure shows it; EBBTIDE_TEST_SEED sets it to repeat one.
"""

import os
import random

_NAME = "EBBTIDE_TEST_SEED"

FRESH_SEED = int(os.environ.setdefault(_NAME, str(random.SystemRandom().randrange(2, 10**6))))
