"""Loads models, infers shapes, names values and writes nodes, for all passes."""
