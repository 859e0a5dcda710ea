-- Run once by the image of PostgreSQL, when its volume is empty.
CREATE DATABASE airflow;
CREATE DATABASE iceberg;
