"""The TensorFlow adapter of popdist."""
