"""What ranks hold between two steps: parameters and buffers, parts of them, optimizers."""
