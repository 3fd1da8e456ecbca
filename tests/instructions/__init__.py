"""What the compiler makes of each kernel, for GPUs that are not there: nothing whose bits depend on the target."""
