"""The command line: one file a command, none of which loads torch before it has to."""
