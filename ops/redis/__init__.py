"""What `rollstream redis` does: serve one, its users, backup and restore, and a prompt on it."""
