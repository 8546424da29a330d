"""A program against other executions of its model, and against its definition."""
