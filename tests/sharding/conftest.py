"""What is in `on_devices` needs eight devices: `test_eight_devices.py` runs it in their process."""

import os

collect_ignore = [] if "device_count=8" in os.environ.get("XLA_FLAGS", "") else ["on_devices"]
