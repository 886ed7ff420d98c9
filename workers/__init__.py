"""The processes that do the work: stages, handlers, agent loop, sandboxes, model servers, graders."""
