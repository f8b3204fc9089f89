"""Readings of the host itself: everything from sysfs and procfs, and RAPL through the helper."""
