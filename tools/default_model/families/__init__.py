"""Task families, one small file each. Every family offers `make(rng) -> Item` and is independent of the others."""
