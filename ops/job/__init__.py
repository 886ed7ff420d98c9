"""What `rollstream job` shows: the story of a job, and what its grader kept."""
