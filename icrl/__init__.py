"""In-context policy evaluation by kernel temporal-difference learning in a fixed transformer."""

__version__ = "0.1.0"
