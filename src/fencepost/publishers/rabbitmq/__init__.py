"""``amqp://`` and ``amqps://``: RabbitMQ."""
