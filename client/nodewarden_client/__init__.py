"""The client that training processes import: standard library only."""
