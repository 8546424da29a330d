"""Looking into what was compiled: programs of any compiled object, why they are so, their sources and page, a measured run."""
