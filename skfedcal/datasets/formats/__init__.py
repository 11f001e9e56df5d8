"""File formats of public data sets, and ways to come by the files."""
