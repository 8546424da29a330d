"""Replay of measured kernels without a device: records of the suite `planner` keep their kernels as texts, which are priced again."""
