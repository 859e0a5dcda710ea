"""Reading a broker's segment files into tables, beside Kafka's own reader and a plain Spark job."""
