"""Bad input, over real sockets against a real broker process: it gets a clear answer and costs its sender alone."""
