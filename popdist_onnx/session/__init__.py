"""Sessions with their devices, data and weights."""
