"""Spark's JVM, tasks, expressions and log, without a word of tables."""
