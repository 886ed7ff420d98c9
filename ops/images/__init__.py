"""What `rollstream image` does: many images at once, those of a task file, as jobs of the housekeeping queue.

pull_many(store, wanted)     some images, in parallel, what is there is not fetched again
images_of_tasks(file)        the images that a task file names
"""

from ops.images.pulling import PullReport, Wanted, pull_many
from ops.images.task_files import TaskImages, images_of_tasks

__all__ = ["PullReport", "TaskImages", "Wanted", "images_of_tasks", "pull_many"]
