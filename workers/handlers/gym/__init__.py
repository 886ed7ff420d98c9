"""Text environments of `reset` and `step` (GEM, Gymnasium, one of our own): the dialogue is the episode, its rewards are the grade."""
