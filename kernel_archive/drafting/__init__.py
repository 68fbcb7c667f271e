"""For ``kernel-archive init``: a recipe and a query for a folder that nobody described yet."""
