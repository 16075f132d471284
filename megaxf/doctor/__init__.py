"""Can this machine, can this cluster run? Each question is a `Check` with what was found and what to do about it."""
