"""A Kafka connection of Airflow with a secret that nobody may show."""

SECRET = "hush-hush"
KAFKA = {
    "conn_type": "kafka",
    "extra": {"bootstrap.servers": "kafka:9092", "sasl.password": SECRET},
}
