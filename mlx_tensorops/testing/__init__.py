"""Tools for the test suites of programs that use MLX."""
