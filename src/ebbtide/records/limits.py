"""Limits on a batch's size, in a module without codecs so that settings can import them."""

from __future__ import annotations

# The topic's setting that limits a batch's size in memory.
MAX_DECOMPRESSED = "ebbtide.max.decompressed.batch.bytes"
# 16 KB of zstd can expand to gigabytes: a batch beyond this size is an attack or a mistake.
MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
