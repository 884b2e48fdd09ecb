"""The class that graphium compares types with; torch-sparse has no wheel for this PyTorch."""


class SparseTensor:
    """A sparse matrix, which no program of the runner makes."""
