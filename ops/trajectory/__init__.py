"""What `rollstream trajectory` does: find, check, show and save what jobs produced."""
