"""The Estimator of the IPU's TensorFlow 1 programs, on TensorFlow 2.15's own."""
