"""Selection: the evaluation split, discovery pairs, training pairs."""
