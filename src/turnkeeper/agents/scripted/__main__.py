"""``python -m turnkeeper.agents.scripted``."""

import sys

from turnkeeper.agents.scripted.agent import main

sys.exit(main(sys.argv[1:]))
