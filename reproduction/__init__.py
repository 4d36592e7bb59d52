# SPDX-License-Identifier: Apache-2.0
"""The paper's figures as experiments: tables of numbers, pictures, and which of its claims hold.

`python -m reproduction list` shows them, `python -m reproduction run NAME --out DIR` runs one.
The package is not installed with the library; run it from the root of the repository.
"""
