"""`python -m covey`: the same as `covey`."""

import sys

from covey.cli.main import main

sys.exit(main())
