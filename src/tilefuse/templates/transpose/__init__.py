"""The transpose template: tiles turned in shared memory."""
