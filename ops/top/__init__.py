"""What `rollstream top` shows: the pipeline while it runs."""
