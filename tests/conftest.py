import os

import torch
from hypothesis import settings

# One thread: the sums of small matrices come out the same everywhere, and xdist can use the rest.
torch.set_num_threads(1)

settings.register_profile("salf", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("salf")
