"""What ranks are fed: batches, what each rank gets of them, and what must be the same."""
