"""Language models as forecasters. Begin reading at ``prompts.py``."""
