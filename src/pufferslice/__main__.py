# SPDX-License-Identifier: Apache-2.0
"""`python -m pufferslice` is the program `pufferslice`."""

from pufferslice.cli import main

if __name__ == "__main__":
    main()
