"""The package version and the version of the data that ships with it."""

__version__ = "1.0.0"
#: Version of the archive that the shipped builders make; frozen splits are kept under this name.
DATA_VERSION = "2026.12.0"
