"""What Keras needs to train, evaluate and predict under the strategies."""
