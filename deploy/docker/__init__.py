"""The image: what is installed in it, and the kernels that it brings along."""
