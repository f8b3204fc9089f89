"""The one door to each vendor library."""
