"""Kernels timed on the device: for planning by measurement, and for tuning."""
