"""Spark's JVM, tasks, expressions and log, without any knowledge of tables."""
