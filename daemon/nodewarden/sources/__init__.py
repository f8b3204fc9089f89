"""Reads hardware into the snapshot: one file, or one folder, per kind of device."""
