"""Many runs from one command: jobs on disjoint devices, each on processes of its own."""
