"""Vector, matrix and order-preserving scaling."""
