"""Reliability diagrams of rows that are in this process."""
