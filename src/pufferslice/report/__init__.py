# SPDX-License-Identifier: Apache-2.0
"""Pictures, tables and one HTML page of what others computed; most need the extra `report`."""
