"""Task families, one small file each; every one offers `make(rng) -> Item` and knows nothing of the others."""
