"""Nodewarden: keeps a GPU training node inside its thermal and power limits without losing training work."""

__version__ = "0.1.0"
