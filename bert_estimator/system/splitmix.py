"""Random numbers without state: a hash of counters, whose values are pinned."""

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15


def mix(values: np.ndarray) -> np.ndarray:
    """Applies the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) to a uint64 array."""
    values = values + np.uint64(GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keys(seed: int, *counters: np.ndarray) -> np.ndarray:
    """Returns a random number, uint64, for each row of counters, integer arrays of one shape such
    as epochs and numbers of records; the lower 64 bits of the seed count."""
    state = mix(np.full(counters[0].shape, seed % 2**64, np.uint64))
    for counter in counters:
        state = mix(state + counter.astype(np.uint64))
    return state
