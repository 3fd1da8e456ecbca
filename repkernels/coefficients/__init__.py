"""Numbers that Triton kernels and their CPU twins share: polynomial coefficients, split constants, listed inputs."""
