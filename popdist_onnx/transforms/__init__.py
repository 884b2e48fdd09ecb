"""The passes that turn a model into a training graph."""
