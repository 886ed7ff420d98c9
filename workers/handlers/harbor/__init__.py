"""Task folders of Harbor: an instruction, an image, and tests that are brought in at the end and write a reward."""
