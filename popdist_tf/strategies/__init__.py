"""Distribution strategies over the host network, and their replicas, variables and reductions."""
