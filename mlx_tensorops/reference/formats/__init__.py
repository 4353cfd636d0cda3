"""One definition per quantization format: how a block of values is encoded and decoded."""
