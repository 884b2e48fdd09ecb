"""The folder on ``PYTHONPATH`` that enables the SDK's names with TensorFlow 1's interface."""
