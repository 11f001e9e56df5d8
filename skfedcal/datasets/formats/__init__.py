"""File formats of public data sets, and downloads of the files."""
