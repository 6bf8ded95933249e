"""Running a policy anywhere: a model in this process, a vLLM server, any chat endpoint."""
