"""Real Kafka clients and Kafka's own tools against Penstock. See README.md in this folder."""
