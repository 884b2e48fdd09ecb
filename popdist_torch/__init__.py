"""The PyTorch adapter: the PopTorch programming model on ordinary hosts, over real Horovod."""
