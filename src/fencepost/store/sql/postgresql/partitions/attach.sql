ALTER TABLE {outbox} ATTACH PARTITION {partition} FOR VALUES FROM ({lower}) TO ({upper})
