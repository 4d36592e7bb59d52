# SPDX-License-Identifier: Apache-2.0
"""Pictures and tables of what others computed; pictures need the extra `report`."""
