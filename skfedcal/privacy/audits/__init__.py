"""Audits: what a release shows about one client, measured against what is claimed."""
