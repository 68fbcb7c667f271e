"""Selection: the splits, and the proof that nothing leaks."""
