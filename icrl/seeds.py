"""Seeds derived from the one integer of an experiment, equal in every process, order and worker count."""

import hashlib
import json


def derived_seed(*parts: int | str) -> int:
    """A 64-bit seed for the thing that `parts` name, independent between different parts.

    SHA-256 rather than Python's ``hash``, which differs from process to process.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big")
