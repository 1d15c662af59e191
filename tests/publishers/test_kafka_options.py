"""What a ``kafka://`` URL may say, and which topic a message goes to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigError
from fencepost.publishers.kafka.options import MAX_TOPIC_CHARS, Order, Settings, Topic
from fencepost.publishers.kafka.publisher import KafkaPublisher
from fencepost.testing import sample_message


class TestTopic:
    @pytest.mark.parametrize(
        ("template", "event_type", "topic"),
        [
            ("{event_type}", "order.created", "order.created"),
            ("{event_type}", "order_created-v2", "order_created-v2"),
            ("{event_type}", "", "_"),
            ("{event_type}", ".", "_2E"),
            ("{event_type}", "..", "_2E_2E"),
            ("{event_type}", "...", "..."),
            ("{event_type}", "a b/c", "a_20b_2Fc"),
            ("{event_type}", "é\r\n", "_C3_A9_0D_0A"),
            ("{event_type}", "__consumer_offsets", "_5F_consumer_offsets"),
            ("shop.{event_type}", "order", "shop.order"),
            ("{queue}.{aggregate_type}.{key}", "x", "default.order.42"),
        ],
    )
    def test_documented_rule(self, template: str, event_type: str, topic: str) -> None:
        assert Topic(template).of(sample_message(event_type)) == topic

    @given(st.text(max_size=400))
    def test_any_text_gives_a_topic_that_kafka_accepts(self, text: str) -> None:
        for template in ("{event_type}", "e.{event_type}.{key}"):
            topic = Topic(template).of(sample_message(text, aggregate_id=text))
            assert re.fullmatch(r"[A-Za-z0-9._\-]{1,249}", topic)
            assert topic not in (".", "..")
            assert not topic.startswith("__")

    def test_long_topics_are_cut_and_stay_distinct(self) -> None:
        one, two = (Topic("{event_type}").of(sample_message("x" * 800 + end)) for end in "ab")
        assert len(one) == len(two) == MAX_TOPIC_CHARS
        assert one != two
        assert one[:232] == two[:232]

    @pytest.mark.parametrize(
        "template", ["", "a b", "a/{event_type}", "{nope}", "__offsets", "{event_type!r}", "x" * 200]
    )
    def test_a_template_that_cannot_work(self, template: str) -> None:
        with pytest.raises(ConfigError, match="topic="):
            Topic(template)


class TestConfig:
    def test_the_promises_are_in_every_configuration(self) -> None:
        settings = Settings("kafka://a,[::1]:9,c:19092/?topic=t")
        for order in Order:
            config = settings.config(order)
            assert config["acks"] == "all"
            assert config["enable.idempotence"] is True
            assert config["max.in.flight"] in (1, 5)
            assert config["bootstrap.servers"] == "a:9092,[::1]:9,c:19092"
            assert config["allow.auto.create.topics"] is False
            assert config["partitioner"] == "murmur2_random", "as in Java"
            assert config["security.protocol"] == "plaintext"
        assert settings.config(Order.STRICT)["max.in.flight"] == 1
        assert settings.config(Order.STRICT)["enable.gapless.guarantee"] is True

    def test_properties_of_librdkafka_are_passed_on(self) -> None:
        config = Settings("kafka://a?rdkafka.linger.ms=7&rdkafka.client.rack=r1").config(Order.FREE)
        assert (config["linger.ms"], config["client.rack"]) == ("7", "r1")

    def test_login_and_tls(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("one\n")
        url = f"kafka://us%40er@b:9093?tls=on&sasl=SCRAM-SHA-512&password_file={secret}"
        settings = Settings(url)
        config = settings.config(Order.FREE)
        assert (config["security.protocol"], config["sasl.mechanisms"]) == ("sasl_ssl", "SCRAM-SHA-512")
        assert (config["sasl.username"], config["sasl.password"]) == ("us@er", "one")
        secret.write_text("two\n")
        assert settings.config(Order.FREE)["sasl.password"] == "two", "a rotated secret needs no restart"

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("kafka:", "name a broker"),
            ("kafka://", "name a broker"),
            ("kafka://h/topic", r"has no path; choose the topic with \?topic="),
            ("kafka://h?acks=1", "acks must be all"),
            ("kafka://h?acks=0", "acks must be all"),
            ("kafka://h?nope=1", "unknown option 'nope'"),
            ("kafka://h?partitioner=random", "partitioner must be"),
            ("kafka://h?compression=rar", "compression must be"),
            ("kafka://h?auto_create=yes", "auto_create must be on or off"),
            ("kafka://h?timeout=0", "timeout must be"),
            ("kafka://u:secret-p@h", "say how to log in, with sasl="),
            ("kafka://h?sasl=PLAIN", "needs a user name and a password"),
            ("kafka://u:secret-p@h?sasl=OAUTHBEARER", "sasl must be"),
            ("kafka://h?ca=/etc/ca.pem", "ca need tls=on"),
            ("kafka://h?tls=on&ca=/nowhere.pem", "ca='/nowhere.pem' cannot be read"),
            ("kafka://h?rdkafka.linger.ms=soon", "linger.ms"),
            ("kafka://h?rdkafka.no.such=1", "no.such"),
            ("kafka://h?rdkafka.ssl.key.password=secret-p&rdkafka.linger.ms=secret-p", "linger.ms"),
        ],
    )
    def test_what_cannot_work_is_refused_with_a_remedy(self, url: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says) as error:
            KafkaPublisher(url)
        assert "secret-p" not in str(error.value)

    @pytest.mark.parametrize(
        "name",
        [
            "acks", "request.required.acks", "enable.idempotence", "max.in.flight", "retries",
            "message.timeout.ms", "delivery.timeout.ms", "message.send.max.retries", "transactional.id",
            "enable.gapless.guarantee", "partitioner", "delivery.report.only.error",
            "test.mock.num.brokers", "plugin.library.paths",
            "dr_cb", "error_cb", "on_delivery", "enable.ssl.certificate.verification", "bootstrap.servers",
            "queuing.strategy", "sasl.password",
        ],
    )  # fmt: skip
    def test_what_would_break_a_promise_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(f"rdkafka.{name} cannot be set")):
            KafkaPublisher(f"kafka://h?rdkafka.{name}=1")
