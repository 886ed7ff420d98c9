"""The processes that do the work: stages, handlers, agent, tools, sandboxes, graders, inference backends."""
