"""`train` and `Trainer`: training from a model and data, without sessions."""
