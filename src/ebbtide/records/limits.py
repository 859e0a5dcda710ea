"""How large a batch may be; read by settings too, so without the codecs' imports."""

from __future__ import annotations

# The setting of a topic that bounds what a batch takes in memory.
MAX_DECOMPRESSED = "ebbtide.max.decompressed.batch.bytes"
# 16 KB of zstd can stand for gigabytes: this much is a batch, more is an attack or a mistake.
MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
