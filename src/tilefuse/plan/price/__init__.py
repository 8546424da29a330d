"""Prices of patterns and library calls: predicted, remembered, measured."""
