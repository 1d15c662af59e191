INSERT INTO {migration} (version, name, checksum) VALUES (%(version)s::int, %(name)s::text, %(checksum)s::text)
