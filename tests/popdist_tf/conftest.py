"""Cuts the CPU into two devices before TensorFlow starts, for strategies of two local replicas."""

import tensorflow as tf

(_CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
