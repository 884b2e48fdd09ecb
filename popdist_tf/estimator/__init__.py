"""The IPU estimators of TensorFlow 1 programs, built on TensorFlow 2.15's Estimator."""
