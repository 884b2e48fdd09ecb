"""The model between passes: loading, names, and writing nodes."""
