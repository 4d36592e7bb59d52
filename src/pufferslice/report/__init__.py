# SPDX-License-Identifier: Apache-2.0
"""Pictures, tables and one HTML page of computed results; most need the extra `report`."""
