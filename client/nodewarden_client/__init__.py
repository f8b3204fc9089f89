"""The client that training processes import: `guard = nodewarden_client.connect(save=fn)`; standard library only."""

from nodewarden_client.client import connect

__all__ = ["connect"]
