"""Language models as forecasters. Begin reading at ``questions.py``."""
