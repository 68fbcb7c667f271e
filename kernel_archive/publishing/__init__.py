"""Publishing: the dataset card, push and pull, the paper's figures."""
