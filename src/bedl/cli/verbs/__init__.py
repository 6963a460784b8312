"""The commands of `bedl`, a file for each or for a few that belong together."""
