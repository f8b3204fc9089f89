"""Changes hardware and jobs: each actuator checks, writes, reads back, and says what it could not do."""
