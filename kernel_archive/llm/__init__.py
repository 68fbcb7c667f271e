"""Language models as forecasters: prompts, batch files, the Inspect task. Begin reading at ``prompts.py``."""
