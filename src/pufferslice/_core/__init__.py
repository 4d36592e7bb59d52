# SPDX-License-Identifier: Apache-2.0
"""What every package stands on: arrays, checks, files, text, search, threads, kernels."""
