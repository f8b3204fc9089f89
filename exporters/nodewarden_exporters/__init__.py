"""What other systems read of the node: Prometheus text from the snapshot."""
