"""Figures of a device's behaviour that were fitted to measurements: data, each number with its unit and its evidence.

Templates and planner read them through the device's record (`device.fitted`). Formulas stay with their readers.
"""
