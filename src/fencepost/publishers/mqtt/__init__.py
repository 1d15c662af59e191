"""``mqtt://`` and ``mqtts://``: MQTT 5."""
