"""What `rollstream dead` does: dead letters read, shown and tried again."""
