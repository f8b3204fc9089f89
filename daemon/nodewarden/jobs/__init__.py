"""The job socket: sessions of training ranks, throttle with a ttl, checkpoints with a deadline and two completions."""
