"""`python -m calque`."""

import sys

from calque.cli import main

sys.exit(main())
